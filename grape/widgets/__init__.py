"""The interactive view: an anywidget for notebooks, and the files that show the same view without a kernel."""

from .assets import script, style

__all__ = ["script", "style"]
