"""Azure ML's expressions (`${{inputs.x}}`) and how a shell quotes their places."""
