"""Where it runs: the Azure ML environment as a Pulumi program, previewed and priced offline."""
