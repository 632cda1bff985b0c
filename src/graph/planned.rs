//! A place in memory for every value of a graph.
//!
//! Rank 4. Part of `graph`.
//!
//! The graphs inside a node are planned together with the one around them, on one
//! clock: what a branch or a loop needs lives while the node runs, and shares
//! memory with everything that does not.

use crate::device::Device;
use crate::error::{GraphFault, Result};
use crate::graph::lifetime::{Clock, lifetimes_on};
use crate::graph::{Graph, Op, Place, PlanningOptions, Role, Scope, Value, ValueId};
use crate::plan::{ArenaReport, MemoryPlan, Placement, PlanRequest, PlanValue};
use crate::shape::ShapeDynamism;

/// A graph whose values are placed, with the plan that they are placed by.
///
/// # Examples
///
/// ```
/// use device_memory::graph::{GraphBuilder, PlannedGraph, PlanningOptions};
/// use device_memory::{Device, ScalarType, TensorSpec};
///
/// let spec = TensorSpec::contiguous(ScalarType::Float, &[16], Device::CPU)?;
/// let mut builder = GraphBuilder::new("forward");
/// let a = builder.input("a", spec.clone());
/// let [b] = builder.kernel("relu", &[a], [spec.clone().into()]);
/// let [c] = builder.kernel("relu", &[b], [spec.into()]);
/// let planned = PlannedGraph::new(builder.finish(&[c])?, &PlanningOptions::default())?;
///
/// // No more than two of the three are alive at once.
/// assert_eq!(planned.memory().buffers()[0].size, 128);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PlannedGraph {
    graph: Graph,
    request: PlanRequest,
    memory: MemoryPlan,
    arenas: Vec<ArenaReport>,
    scope: Scope,
    given: Vec<ValueId>,
    host_memory_only: bool,
}

impl PlannedGraph {
    /// Places the values of a graph that is on its devices already; see
    /// [`propagate`](crate::graph::propagate).
    ///
    /// # Errors
    ///
    /// - [`WrongDevice`](GraphFault::WrongDevice): a node and a value that it uses are
    ///   apart, and not everything is on the host.
    /// - [`Unbounded`](GraphFault::Unbounded): a value to be planned has no bounds.
    /// - as [`PlanRequest::plan`].
    pub fn new(graph: Graph, options: &PlanningOptions) -> Result<Self> {
        if !options.host_memory_only {
            graph.check_devices()?;
        }
        let mut request = PlanRequest::new();
        request.set_default(options.default);
        for (&device, &of_device) in &options.devices {
            request.set_device(device, of_device);
        }
        let mut collector = Collector {
            options,
            request,
            given: Vec::new(),
        };
        let sources = collector.collect_outer(&graph)?;
        let Collector { request, given, .. } = collector;
        let report = request.plan(&options.planner)?;
        let scope = place(&graph, &sources, report.plan.placements());
        Ok(Self {
            graph,
            request,
            memory: report.plan,
            arenas: report.arenas,
            scope,
            given,
            host_memory_only: options.host_memory_only,
        })
    }

    /// The graph.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The buffers, and what lies where in them.
    #[must_use]
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// What was asked of the planner: the values that have bytes of their own, those
    /// of inner graphs too.
    #[must_use]
    pub fn request(&self) -> &PlanRequest {
        &self.request
    }

    /// What is known of each buffer.
    #[must_use]
    pub fn arenas(&self) -> &[ArenaReport] {
        &self.arenas
    }

    /// The values whose memory the caller gives, in the order of their numbers.
    #[must_use]
    pub fn given(&self) -> &[ValueId] {
        &self.given
    }

    /// Where a value of the graph is.
    #[must_use]
    pub fn place(&self, id: ValueId) -> Option<Place> {
        self.scope.places.get(id.index()).copied()
    }

    /// The device that the memory of a value is to be on.
    pub(crate) fn device_of_memory(&self, value: &Value) -> Device {
        if self.host_memory_only {
            Device::CPU
        } else {
            value.device()
        }
    }

    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }
}

/// Where a value comes from, before the plan is made.
#[derive(Clone, Copy)]
enum Source {
    /// The position in the request.
    Planned(usize),
    Given,
    /// It is that value of the graph around it.
    Outer(ValueId),
    /// It lies in another value.
    InBase,
}

/// The sources of the values of one graph, and of those inside its nodes.
struct Sources {
    values: Vec<Source>,
    inner: Vec<Vec<Sources>>,
}

struct Collector<'o> {
    options: &'o PlanningOptions,
    request: PlanRequest,
    given: Vec<ValueId>,
}

impl Collector<'_> {
    fn collect_outer(&mut self, graph: &Graph) -> Result<Sources> {
        let outputs = graph.outputs().iter();
        let output_roots: Vec<ValueId> = outputs
            .filter_map(|&output| graph.root(output))
            .map(|root| root.value)
            .collect();
        let mut is_output = vec![false; graph.values().len()];
        for root in output_roots {
            if let Some(is_output) = is_output.get_mut(root.index()) {
                *is_output = true;
            }
        }
        let mut values = Vec::with_capacity(graph.values().len());
        for (value, is_output) in graph.values().iter().zip(is_output) {
            let planned = match value.role() {
                Role::Constant => false,
                Role::Input => self.options.plan_inputs,
                Role::MutableBuffer => self.options.plan_buffers,
                Role::Computed => !is_output || self.options.plan_outputs,
            };
            values.push(if value.base().is_some() {
                Source::InBase
            } else if planned {
                Source::Planned(0)
            } else {
                self.given.push(ValueId::at(values.len()));
                Source::Given
            });
        }
        self.collect(graph, values, 0)
    }

    /// Adds the values of an inner graph, whose inputs are those of the graph around
    /// it.
    fn collect_inner(
        &mut self,
        graph: &Graph,
        inputs: &[ValueId],
        start: usize,
    ) -> Result<Sources> {
        let values = graph.values().iter();
        let mut sources: Vec<Source> = values
            .map(|value| match value.base() {
                Some(_) => Source::InBase,
                None => Source::Planned(0),
            })
            .collect();
        for (&own, &outer) in graph.inputs().iter().zip(inputs) {
            if let Some(source) = sources.get_mut(own.index()) {
                *source = Source::Outer(outer);
            }
        }
        self.collect(graph, sources, start)
    }

    /// Adds what is planned of `values` to the request, in the order in which it
    /// comes to be, with step 0 of the graph at `start` of the clock.
    fn collect(&mut self, graph: &Graph, mut values: Vec<Source>, start: usize) -> Result<Sources> {
        let clock = Clock::of(graph);
        let lifetimes = lifetimes_on(graph, &clock);
        let mut push = |collector: &mut Self, id: ValueId| -> Result<()> {
            let known = graph.value(id).zip(lifetimes.get(id.index()));
            if let (Some(source @ Source::Planned(_)), Some((value, lifetime))) =
                (values.get_mut(id.index()), known)
            {
                let steps =
                    start.saturating_add(lifetime.first)..=start.saturating_add(lifetime.last);
                *source = Source::Planned(collector.push(value, steps)?);
            }
            Ok(())
        };
        for buffer in graph.mutable_buffers() {
            push(self, buffer)?;
        }
        for &input in graph.inputs() {
            push(self, input)?;
        }
        let mut inner = Vec::with_capacity(graph.nodes().len());
        for (index, node) in graph.nodes().iter().enumerate() {
            for &output in node.outputs() {
                push(self, output)?;
            }
            let mut start = start.saturating_add(clock.start(index)).saturating_add(1);
            let inputs = match node.op() {
                Op::Loop { .. } => node.outputs(),
                _ => node.inputs().get(1..).unwrap_or_default(),
            };
            let mut of_node = Vec::new();
            for graph in node.op().graphs() {
                of_node.push(self.collect_inner(graph, inputs, start)?);
                start = start.saturating_add(Clock::of(graph).len());
            }
            inner.push(of_node);
        }
        Ok(Sources { values, inner })
    }

    fn push(&mut self, value: &Value, steps: std::ops::RangeInclusive<usize>) -> Result<usize> {
        let spec = value.spec();
        if spec.dynamism() == ShapeDynamism::DynamicUnbound {
            return Err(GraphFault::Unbounded {
                value: value.name().to_owned(),
            }
            .into());
        }
        let device = if self.options.host_memory_only {
            Device::CPU
        } else {
            spec.device()
        };
        let pool = match value.role() {
            Role::MutableBuffer => self.options.buffer_pool,
            _ => 0,
        };
        let planned = PlanValue::new(spec.size_in_bytes(), steps)
            .on(device)
            .in_pool(pool)
            .named(value.name());
        Ok(self.request.push(planned))
    }
}

/// The places of the values of the outermost graph.
fn place(graph: &Graph, sources: &Sources, placements: &[Placement]) -> Scope {
    place_inside(graph, sources, placements, &[])
}

/// The places of the values of a graph inside one whose places are `outer`.
fn place_inside(
    graph: &Graph,
    sources: &Sources,
    placements: &[Placement],
    outer: &[Place],
) -> Scope {
    let values = graph.values().iter().zip(&sources.values).enumerate();
    let own: Vec<Option<Place>> = values
        .map(|(index, (value, source))| match *source {
            Source::Planned(position) => placements.get(position).copied().map(Place::Planned),
            Source::Given => Some(Place::Given {
                value: ValueId::at(index),
                offset: 0,
                size: (value.spec().dynamism() != ShapeDynamism::DynamicUnbound)
                    .then_some(value.spec().size_in_bytes()),
            }),
            Source::Outer(id) => outer.get(id.index()).copied(),
            Source::InBase => None,
        })
        .collect();
    let values = graph.values().iter().enumerate();
    let places: Vec<Place> = values
        .map(|(index, value)| {
            let root = graph.root(ValueId::at(index));
            let place = root.and_then(|root| {
                let place = own.get(root.value.index()).copied().flatten()?;
                Some(if value.base().is_some() {
                    place.part(root.offset, value.spec().size_in_bytes())
                } else {
                    place
                })
            });
            // Every value has a root, and every root a source.
            place.unwrap_or(Place::Planned(Placement::new(0, 0, 0)))
        })
        .collect();
    let nodes = graph.nodes().iter().zip(&sources.inner);
    let inner = nodes
        .map(|(node, sources)| {
            let graphs = node.op().graphs().zip(sources);
            graphs
                .map(|(graph, sources)| place_inside(graph, sources, placements, &places))
                .collect()
        })
        .collect();
    Scope { places, inner }
}
