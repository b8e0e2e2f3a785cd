"""Specifications of accelerators, by their vendors."""

import dataclasses
from collections.abc import Mapping

from benchmarks.counting import Work


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """One device of JAX.

    Attributes:
      peak: FLOP per second of dense products of float32 operands at JAX's default precision (on
        TPUs one bfloat16 pass, on GPUs TF32: `jax.lax.Precision`).
      narrow_peak: FLOP per second of dense products of bfloat16 operands.
      bandwidth: of its memory, in bytes per second.
      memory: in bytes.
      source: of these numbers.
    """

    peak: float
    narrow_peak: float
    bandwidth: float
    memory: float
    source: str

    def seconds(self, work: Work, utilization: float) -> float:
        """Return the seconds that the products of some work take at a fraction of the peak."""
        return self._at_peak(work) / utilization

    def least_seconds(self, work: Work) -> float:
        """Return a lower bound of these seconds, by each product's arithmetic or memory traffic."""
        return sum(
            times
            * max(product.flop / self._peak(product.dtype), product.num_bytes / self.bandwidth)
            for product, times in work.products.items()
        )

    def highest_utilization(self, work: Work) -> float:
        """Return the fraction of the peak that the memory's bandwidth allows."""
        return self._at_peak(work) / self.least_seconds(work)

    def _at_peak(self, work: Work) -> float:
        return sum(n * p.flop / self._peak(p.dtype) for p, n in work.products.items())

    def _peak(self, dtype: str) -> float:
        return self.narrow_peak if dtype == "bfloat16" else self.peak


# For GPUs, the dense peak, which is half of the sparse peak in data sheets.
ACCELERATORS: Mapping[str, Accelerator] = {
    "tpu_v3_core": Accelerator(
        peak=61.5e12,
        narrow_peak=61.5e12,
        bandwidth=450e9,
        memory=16 * 2**30,
        source="half a chip of https://docs.cloud.google.com/tpu/docs/v3",
    ),
    "tpu_v5e": Accelerator(
        peak=197e12,
        narrow_peak=197e12,
        bandwidth=819e9,
        memory=16e9,
        source="https://docs.cloud.google.com/tpu/docs/v5e",
    ),
    "tpu_v6e": Accelerator(
        peak=918e12,
        narrow_peak=918e12,
        bandwidth=1638e9,
        memory=32e9,
        source="https://docs.cloud.google.com/tpu/docs/v6e",
    ),
    "a100": Accelerator(
        peak=156e12,
        narrow_peak=312e12,
        bandwidth=2039e9,
        memory=80e9,
        source="NVIDIA A100 data sheet (SXM, 80 GB), as other pages cite it",
    ),
    "h100": Accelerator(
        peak=494.5e12,
        narrow_peak=989e12,
        bandwidth=3.35e12,
        memory=80e9,
        source="NVIDIA H100 data sheet (SXM), as other pages cite it",
    ),
    "h200": Accelerator(
        peak=494.5e12,
        narrow_peak=989e12,
        bandwidth=4.8e12,
        memory=141e9,
        source="NVIDIA H200 data sheet (SXM); memory and bandwidth not looked up again",
    ),
}
