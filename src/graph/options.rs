//! What may be asked of the passes, per method and per value.
//!
//! Rank 4. Part of `graph`.

use std::collections::BTreeMap;

use crate::device::Device;
use crate::error::GraphFault;
use crate::plan::{DeviceOptions, PlanOptions};

/// Which of several named values stay on the device where they are used, so that
/// no copy is made.
///
/// Whoever gives or takes such a value does so on the device.
///
/// # Examples
///
/// ```
/// use device_memory::graph::Skip;
///
/// let skip = Skip::only(["token", "position"]);
///
/// assert!(skip.contains("token"));
/// assert!(!skip.contains("mask"));
/// assert!(!Skip::by_name([("token", false)]).contains("token"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Skip {
    /// None of them.
    #[default]
    None,
    /// All of them.
    All,
    /// Those with `true`; what is not named is not skipped.
    ByName(BTreeMap<String, bool>),
}

impl Skip {
    /// Those named.
    #[must_use]
    pub fn only<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self::by_name(names.into_iter().map(|name| (name, true)))
    }

    /// Those named with `true`.
    #[must_use]
    pub fn by_name<S: Into<String>>(names: impl IntoIterator<Item = (S, bool)>) -> Self {
        let names = names.into_iter();
        Self::ByName(names.map(|(name, skip)| (name.into(), skip)).collect())
    }

    /// Whether the value of this name is one of them.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::ByName(names) => names.get(name).copied().unwrap_or(false),
        }
    }

    /// Whether it may be that any value is one of them.
    #[must_use]
    pub fn is_any(&self) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::ByName(names) => names.values().any(|&skip| skip),
        }
    }

    /// Checks that all names are known.
    pub(super) fn check(
        &self,
        what: &'static str,
        known: impl Iterator<Item = String>,
    ) -> Result<(), GraphFault> {
        let Self::ByName(names) = self else {
            return Ok(());
        };
        let known: Vec<String> = known.collect();
        match names.keys().find(|name| !known.contains(name)) {
            Some(name) => Err(GraphFault::UnknownName {
                what,
                name: name.clone(),
                known,
            }),
            None => Ok(()),
        }
    }
}

/// What is copied, and how, in one method.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MethodOptions {
    /// The inputs that are on the device of the delegates that use them.
    pub resident_inputs: Skip,
    /// The outputs that stay on the device that they are made on.
    pub resident_outputs: Skip,
    /// The mutable buffers that are on the device of the delegates that use them.
    pub resident_buffers: Skip,
    /// Whether values go from one device to another directly, not through the
    /// host.
    pub direct_copies: bool,
    /// Whether delegates of one device share the copies of what they all use.
    ///
    /// That saves copies and may take more memory, since such a copy is needed
    /// for longer.
    pub shared_copies: bool,
}

/// What is copied, and how, in each method of a program.
///
/// # Examples
///
/// ```
/// use device_memory::graph::{MethodOptions, PropagateOptions, Skip};
///
/// let skipping = MethodOptions {
///     resident_inputs: Skip::All,
///     ..MethodOptions::default()
/// };
/// let options = PropagateOptions::default().with_method("decode", skipping.clone());
///
/// assert_eq!(options.method("decode"), &skipping);
/// assert_eq!(options.method("prefill"), &MethodOptions::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropagateOptions {
    /// The methods that are not listed below.
    pub others: MethodOptions,
    /// Methods by name.
    pub methods: BTreeMap<String, MethodOptions>,
    /// Whether memory of devices is not planned: then delegates run on host
    /// memory, and values are told their device without being put there.
    pub host_memory_only: bool,
}

impl PropagateOptions {
    /// The same options for all methods.
    #[must_use]
    pub fn all(options: MethodOptions) -> Self {
        Self {
            others: options,
            ..Self::default()
        }
    }

    /// The same with options for one method.
    #[must_use]
    pub fn with_method(mut self, name: impl Into<String>, options: MethodOptions) -> Self {
        self.methods.insert(name.into(), options);
        self
    }

    /// The options of the method `name`.
    #[must_use]
    pub fn method(&self, name: &str) -> &MethodOptions {
        self.methods.get(name).unwrap_or(&self.others)
    }
}

/// What is planned of a graph, and how.
///
/// By default everything but constants is planned, with the default alignment of
/// the crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanningOptions {
    /// Whether inputs are part of the plan; otherwise the caller gives their memory.
    pub plan_inputs: bool,
    /// Whether outputs are part of the plan; otherwise the caller gives their memory.
    pub plan_outputs: bool,
    /// Whether mutable buffers are part of the plan; otherwise the caller gives
    /// their memory.
    pub plan_buffers: bool,
    /// The pool of their device that planned mutable buffers lie in; everything else
    /// lies in pool 0.
    ///
    /// With a pool of their own, methods that have the same buffers on the same
    /// devices have them at the same places, so that
    /// [`PlannedMemory::allocate_shared`](crate::PlannedMemory::allocate_shared) lets
    /// one go on where another has stopped.
    pub buffer_pool: u32,
    /// Whether everything is placed on the host, whatever device it is meant for.
    pub host_memory_only: bool,
    /// The alignment, padding and capacity of each device not listed below.
    pub default: DeviceOptions,
    /// The alignment, padding and capacity of devices.
    pub devices: BTreeMap<Device, DeviceOptions>,
    /// The algorithm and its budget.
    pub planner: PlanOptions,
}

impl Default for PlanningOptions {
    fn default() -> Self {
        Self {
            plan_inputs: true,
            plan_outputs: true,
            plan_buffers: true,
            buffer_pool: 0,
            host_memory_only: false,
            default: DeviceOptions::default(),
            devices: BTreeMap::new(),
            planner: PlanOptions::default(),
        }
    }
}

impl PlanningOptions {
    /// The default options, with inputs and outputs in memory that the caller gives.
    #[must_use]
    pub fn unplanned_io() -> Self {
        Self {
            plan_inputs: false,
            plan_outputs: false,
            ..Self::default()
        }
    }
}
