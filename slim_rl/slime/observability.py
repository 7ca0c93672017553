"""SLIME moved these to another package after v0.3.1."""

try:
    from slime.observability import logging_utils
    from slime.observability.metric_utils import compute_rollout_step
    from slime.observability.trace_utils import build_sglang_meta_trace_attrs, trace_span
except ModuleNotFoundError:  # v0.3.1
    from slime.utils import logging_utils
    from slime.utils.metric_utils import compute_rollout_step
    from slime.utils.trace_utils import build_sglang_meta_trace_attrs, trace_span

__all__ = ["build_sglang_meta_trace_attrs", "compute_rollout_step", "logging_utils", "trace_span"]
