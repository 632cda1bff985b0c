//! The exact search: is there a plan within a capacity?
//!
//! Rank 2. Part of `plan`.
//!
//! Jobs are placed from the bottom up, each at the lowest offset that those below
//! leave it, in the order of their offsets. Every plan can be pushed down into such
//! an order, so trying all of them finds a plan if there is one. What makes it
//! fast are the tests that show early that an order can not be completed:
//! `bound` holds the main one, `machine` the others.

mod bound;
mod gaps;
mod lane;
mod machine;
mod memo;
mod order;
mod parts;
mod portfolio;

pub(super) use portfolio::{Found, Limits, search, turns};
