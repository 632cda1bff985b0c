#![doc = include_str!("guide.md")]
//!
//! ---
//! Rank 4. Documentation only.
