"""Why a region stays eager."""
