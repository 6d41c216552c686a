//! Micro-benchmarks of revd.
