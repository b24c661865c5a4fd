"""Rules for errors that the SDK misses offline. Importing this package registers them."""

from importlib import import_module
from pkgutil import iter_modules

from ml.core import plug_ins

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
plug_ins.load("spec-rules")
