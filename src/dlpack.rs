//! Tensors that pass to and from other libraries (feature `dlpack`).
//!
//! Rank 8. Imports nothing yet.
