//! Which calls are to fail.
//!
//! Rank 8. Part of `testing::fault_injector`. Imports the words.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::Operation;

/// The orders of a [`FaultInjector`](super::FaultInjector), and the count of its
/// calls.
///
/// Clones are handles of the same orders. They may be used from any thread,
/// also while calls are made. Several orders apply side by side.
#[derive(Clone)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

/// The source of an error that a [`FaultInjector`](super::FaultInjector) made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("injected fault in call {call}: {operation}")]
#[non_exhaustive]
pub struct InjectedFault {
    /// What was asked.
    pub operation: Operation,
    /// The position among all calls that were counted, from 1.
    pub call: u64,
}

/// What to do with a call.
pub(super) enum Outcome {
    Pass,
    Fail(InjectedFault),
    Panic(InjectedFault),
}

#[derive(Default)]
struct State {
    orders: Vec<Order>,
    calls: u64,
    fired: Vec<InjectedFault>,
}

struct Order {
    /// The operation it is for, or `None` for all.
    operation: Option<Operation>,
    when: When,
    panics: bool,
}

enum When {
    /// At the call after so many more, once.
    After(u64),
    Always,
}

impl Faults {
    /// Makes orders that let every call pass.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: Arc::default(),
        }
    }

    /// Fails the `n`-th call of `operation` from now, counted from 1. For 0,
    /// fails none.
    pub fn fail_nth(&self, operation: Operation, n: u64) {
        self.order(Some(operation), n, false);
    }

    /// Fails the `n`-th call of any kind from now, counted from 1. For 0, fails
    /// none.
    pub fn fail_nth_call(&self, n: u64) {
        self.order(None, n, false);
    }

    /// Fails every call of `operation` from now.
    pub fn fail_all(&self, operation: Operation) {
        self.state.lock().orders.push(Order {
            operation: Some(operation),
            when: When::Always,
            panics: false,
        });
    }

    /// Panics in the `n`-th call of `operation` from now, counted from 1. For 0,
    /// in none.
    pub fn panic_on(&self, operation: Operation, n: u64) {
        self.order(Some(operation), n, true);
    }

    /// Panics in the `n`-th call of any kind from now, counted from 1. For 0, in
    /// none.
    pub fn panic_on_call(&self, n: u64) {
        self.order(None, n, true);
    }

    /// Takes back all orders. Calls go on being counted.
    pub fn disarm(&self) {
        self.state.lock().orders.clear();
    }

    /// How many calls were made so far, those that failed included.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// The faults that came about so far, the first first.
    #[must_use]
    pub fn fired(&self) -> Vec<InjectedFault> {
        self.state.lock().fired.clone()
    }

    /// Starts over: no orders, no calls, no faults.
    pub(in crate::testing) fn restart(&self) {
        *self.state.lock() = State::default();
    }

    fn order(&self, operation: Option<Operation>, n: u64, panics: bool) {
        if let Some(before) = n.checked_sub(1) {
            self.state.lock().orders.push(Order {
                operation,
                when: When::After(before),
                panics,
            });
        }
    }

    /// Counts a call, and says what to do with it.
    pub(super) fn count(&self, operation: Operation) -> Outcome {
        let mut state = self.state.lock();
        state.calls = state.calls.saturating_add(1);
        let mut fails = false;
        let mut panics = false;
        state.orders.retain_mut(|order| {
            if order.operation.is_some_and(|only| only != operation) {
                return true;
            }
            let (fires, stays) = match &mut order.when {
                When::Always => (true, true),
                When::After(0) => (true, false),
                When::After(before) => {
                    *before = before.saturating_sub(1);
                    (false, true)
                }
            };
            fails |= fires;
            panics |= fires && order.panics;
            stays
        });
        if !fails {
            return Outcome::Pass;
        }
        let fault = InjectedFault {
            operation,
            call: state.calls,
        };
        state.fired.push(fault);
        if panics {
            Outcome::Panic(fault)
        } else {
            Outcome::Fail(fault)
        }
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut output = f.debug_struct("Faults");
        // Printing from under the lock must not wait for it.
        if let Some(state) = self.state.try_lock() {
            output
                .field("orders", &state.orders.len())
                .field("calls", &state.calls)
                .field("fired", &state.fired.len());
        }
        output.finish_non_exhaustive()
    }
}
