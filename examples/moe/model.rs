//! The decode step of a model as a graph: one token in, the next one out.
//!
//! Token and position stay on the device from step to step, with all that a layer
//! remembers. Keys and values of full attention lie in a pool of blocks that all
//! sequences share; that pool is the delegate's own, and the graph has the table
//! that says which blocks are whose.

use std::collections::HashMap;

use device_memory::graph::{Graph, GraphBuilder, Output, ValueId};
use device_memory::{Device, Result, ScalarType, TensorSpec};

use crate::config::{Config, Mixer};
use crate::kernel::{Kernel, PagedLayer};

/// The graph, and which kernel each of its delegates is, by the name of the node.
#[derive(Debug)]
pub(crate) struct Model {
    /// The decode step.
    pub(crate) graph: Graph,
    /// The kernels by node.
    pub(crate) kernels: HashMap<String, Kernel>,
    /// How keys and values are kept.
    pub(crate) cache: Cache,
}

/// How the keys and values of a sequence are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache {
    /// The positions in a block.
    pub(crate) positions: usize,
    /// The blocks of a sequence.
    pub(crate) blocks: usize,
}

impl Cache {
    /// The floats of a block: keys and values of all layers of attention.
    pub(crate) fn block_len(self, config: &Config) -> usize {
        let layers = config
            .layers
            .iter()
            .filter(|&&mixer| mixer == Mixer::Attention);
        layers.count() * self.layer_len(config)
    }

    /// The floats of one layer in a block.
    fn layer_len(self, config: &Config) -> usize {
        self.positions * 2 * config.heads.keys * config.heads.size
    }
}

impl Model {
    /// The decode step of a model, with all delegates on `device`.
    pub(crate) fn new(config: &Config, cache: Cache, device: Device) -> Result<Self> {
        let mut step = Step {
            config,
            cache,
            device,
            builder: GraphBuilder::new("decode"),
            sizes: HashMap::new(),
            kernels: HashMap::new(),
        };
        let token = step.kept("token", ScalarType::Long, &[1])?;
        let position = step.kept("position", ScalarType::Long, &[1])?;
        let table = step.kept("table", ScalarType::Long, &[cache.blocks])?;
        let place = Place { position, table };

        let rows = [config.vocabulary, config.hidden];
        let embedding = step.weight("model.embed_tokens.weight", &rows)?;
        let mut x = step.run("embed", Kernel::Embed, &[token, embedding], config.hidden)?;
        for (layer, mixer) in config.layers.iter().enumerate() {
            x = step.layer(layer, *mixer, x, place)?;
        }
        let x = step.norm("model.norm", x)?;
        let logits = step.linear("lm_head", x, config.vocabulary)?;
        let chosen = step.choose(logits, token, position)?;
        Ok(Self {
            graph: step.builder.finish(&[chosen, logits])?,
            kernels: step.kernels,
            cache,
        })
    }
}

/// Which position a step is for, and where its keys and values go.
#[derive(Clone, Copy)]
struct Place {
    position: ValueId,
    table: ValueId,
}

/// A graph in the making.
struct Step<'a> {
    config: &'a Config,
    cache: Cache,
    device: Device,
    builder: GraphBuilder,
    /// The elements of each value.
    sizes: HashMap<ValueId, usize>,
    kernels: HashMap<String, Kernel>,
}

impl Step<'_> {
    fn layer(&mut self, layer: usize, mixer: Mixer, x: ValueId, place: Place) -> Result<ValueId> {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let y = self.norm(&name("input_layernorm"), x)?;
        let mixed = match mixer {
            Mixer::Attention => self.attention(&name("self_attn"), layer, y, place)?,
            Mixer::Delta => self.delta(&name("linear_attn"), y)?,
        };
        let x = self.run(&name("mixed"), Kernel::Add, &[x, mixed], self.config.hidden)?;
        let y = self.norm(&name("post_attention_layernorm"), x)?;
        let thought = self.experts(&name("mlp"), y)?;
        self.run(&name("out"), Kernel::Add, &[x, thought], self.config.hidden)
    }

    /// Attention over all positions of the sequence so far.
    fn attention(&mut self, at: &str, layer: usize, x: ValueId, place: Place) -> Result<ValueId> {
        let Config { heads, gated, .. } = *self.config;
        let stride = if gated { 2 * heads.size } else { heads.size };
        let queries = self.linear(&format!("{at}.q_proj"), x, heads.queries * stride)?;
        let keys = self.linear(&format!("{at}.k_proj"), x, heads.keys * heads.size)?;
        let values = self.linear(&format!("{at}.v_proj"), x, heads.keys * heads.size)?;
        let turned_queries = self.turn(
            &format!("{at}.q_norm"),
            queries,
            stride,
            heads.queries,
            place,
        )?;
        let turned_keys =
            self.turn(&format!("{at}.k_norm"), keys, heads.size, heads.keys, place)?;

        let layer = self.paged(layer);
        let append = self.name(&format!("{at}.append"), Kernel::Append { layer });
        let Place { position, table } = place;
        let inputs = [turned_keys, values, position, table];
        let [] = self
            .builder
            .delegate(&append, Some(self.device), &inputs, []);

        let attend = self.name(&format!("{at}.attend"), Kernel::Attention { layer, heads });
        let size = heads.queries * heads.size;
        let spec = floats(&[size])?;
        let inputs = [turned_queries, position, table];
        let [mut attended] =
            self.builder
                .delegate(&attend, Some(self.device), &inputs, [spec.into()]);
        self.sizes.insert(attended, size);
        if gated {
            let gate = Kernel::Gate {
                start: heads.size,
                stride,
                size: heads.size,
            };
            attended = self.run(&format!("{at}.gate"), gate, &[attended, queries], size)?;
        }
        self.linear(&format!("{at}.o_proj"), attended, self.config.hidden)
    }

    /// Normalizes heads and turns them by the position.
    fn turn(
        &mut self,
        at: &str,
        x: ValueId,
        stride: usize,
        count: usize,
        place: Place,
    ) -> Result<ValueId> {
        let Config {
            heads,
            rotary,
            theta,
            norm_offset: offset,
            epsilon,
            ..
        } = *self.config;
        let weight = self.weight(&format!("{at}.weight"), &[heads.size])?;
        let turn = Kernel::NormRope {
            stride,
            rotary,
            theta,
            offset,
            epsilon,
        };
        self.run(at, turn, &[x, weight, place.position], count * heads.size)
    }

    /// The gated delta rule over a state of fixed size.
    fn delta(&mut self, at: &str, x: ValueId) -> Result<ValueId> {
        let Some(heads) = self.config.delta else {
            return Ok(x);
        };
        let width = self.config.convolution;
        let values = heads.values * heads.value_size;
        let channels = 2 * heads.keys * heads.key_size + values;
        let mixed = self.linear(&format!("{at}.in_proj_qkv"), x, channels)?;
        let gates = self.linear(&format!("{at}.in_proj_z"), x, values)?;
        let a = self.linear(&format!("{at}.in_proj_a"), x, heads.values)?;
        let b = self.linear(&format!("{at}.in_proj_b"), x, heads.values)?;

        let filter = self.weight(&format!("{at}.conv1d.weight"), &[channels, 1, width])?;
        let past = self.kept(
            &format!("{at}.past"),
            ScalarType::Float,
            &[channels, width - 1],
        )?;
        let convolved = self.run_over(
            &format!("{at}.convolve"),
            Kernel::Convolve,
            &[mixed, filter],
            channels,
            past,
        )?;

        let a_log = self.weight(&format!("{at}.A_log"), &[heads.values])?;
        let bias = self.weight(&format!("{at}.dt_bias"), &[heads.values])?;
        let shape = [heads.values, heads.key_size, heads.value_size];
        let state = self.kept(&format!("{at}.state"), ScalarType::Float, &shape)?;
        let inputs = [convolved, a, b, a_log, bias];
        let recalled = self.run_over(
            &format!("{at}.delta"),
            Kernel::Delta { heads },
            &inputs,
            values,
            state,
        )?;

        let weight = self.weight(&format!("{at}.norm.weight"), &[heads.value_size])?;
        let norm = Kernel::GatedNorm {
            epsilon: self.config.epsilon,
        };
        let normed = self.run(
            &format!("{at}.norm"),
            norm,
            &[recalled, gates, weight],
            values,
        )?;
        self.linear(&format!("{at}.out_proj"), normed, self.config.hidden)
    }

    /// The chosen experts, and the one that sees every token if there is one.
    fn experts(&mut self, at: &str, x: ValueId) -> Result<ValueId> {
        let Config {
            hidden,
            experts: (count, chosen),
            expert_hidden: size,
            ..
        } = *self.config;
        let logits = self.linear(&format!("{at}.gate"), x, count)?;
        let route = self.name(&format!("{at}.route"), Kernel::Route);
        let outputs = [longs(&[chosen])?.into(), floats(&[chosen])?.into()];
        let [experts, shares] =
            self.builder
                .delegate(&route, Some(self.device), &[logits], outputs);

        let up = self.weight(
            &format!("{at}.experts.gate_up_proj"),
            &[count, 2 * size, hidden],
        )?;
        let down = self.weight(&format!("{at}.experts.down_proj"), &[count, hidden, size])?;
        let inner = self.run(
            &format!("{at}.up"),
            Kernel::ExpertsUp,
            &[x, experts, up],
            chosen * size,
        )?;
        let inputs = [inner, experts, shares, down];
        let routed = self.run(&format!("{at}.down"), Kernel::ExpertsDown, &inputs, hidden)?;
        let Some(size) = self.config.shared_hidden else {
            return Ok(routed);
        };
        let gates = self.weight(
            &format!("{at}.shared_expert.gate_proj.weight"),
            &[size, hidden],
        )?;
        let ups = self.weight(
            &format!("{at}.shared_expert.up_proj.weight"),
            &[size, hidden],
        )?;
        let inner = self.run(
            &format!("{at}.shared_up"),
            Kernel::GatedUp,
            &[x, gates, ups],
            size,
        )?;
        let shared = self.linear(&format!("{at}.shared_expert.down_proj"), inner, hidden)?;
        let gate = self.weight(&format!("{at}.shared_expert_gate.weight"), &[1, hidden])?;
        self.run(
            &format!("{at}.shared"),
            Kernel::AddShared,
            &[routed, shared, x, gate],
            hidden,
        )
    }

    /// The next token and position, in place of this step's.
    fn choose(&mut self, logits: ValueId, token: ValueId, position: ValueId) -> Result<ValueId> {
        let name = self.name("choose", Kernel::Choose);
        let outputs = [
            Output::new(longs(&[1])?)
                .named("next")
                .in_place_of(token, 0),
            Output::new(longs(&[1])?)
                .named("after")
                .in_place_of(position, 0),
        ];
        let [next, _] = self
            .builder
            .delegate(&name, Some(self.device), &[logits], outputs);
        Ok(next)
    }

    fn norm(&mut self, at: &str, x: ValueId) -> Result<ValueId> {
        let Config {
            hidden,
            norm_offset: offset,
            epsilon,
            ..
        } = *self.config;
        let weight = self.weight(&format!("{at}.weight"), &[hidden])?;
        self.run(
            at,
            Kernel::RmsNorm { offset, epsilon },
            &[x, weight],
            hidden,
        )
    }

    fn linear(&mut self, at: &str, x: ValueId, outputs: usize) -> Result<ValueId> {
        let inputs = self.sizes[&x];
        let weight = self.weight(&format!("{at}.weight"), &[outputs, inputs])?;
        self.run(at, Kernel::Linear, &[x, weight], outputs)
    }

    /// Adds a delegate that makes `size` floats.
    fn run(
        &mut self,
        at: &str,
        kernel: Kernel,
        inputs: &[ValueId],
        size: usize,
    ) -> Result<ValueId> {
        let name = self.name(at, kernel);
        let spec = floats(&[size])?;
        let [out] = self
            .builder
            .delegate(&name, Some(self.device), inputs, [spec.into()]);
        self.sizes.insert(out, size);
        Ok(out)
    }

    /// Adds a delegate that makes `size` floats and writes over `state`.
    fn run_over(
        &mut self,
        at: &str,
        kernel: Kernel,
        inputs: &[ValueId],
        size: usize,
        state: ValueId,
    ) -> Result<ValueId> {
        let name = self.name(at, kernel);
        let after = floats(&[self.sizes[&state]])?;
        let outputs = [
            floats(&[size])?.into(),
            Output::new(after).in_place_of(state, 0),
        ];
        let [out, _] = self
            .builder
            .delegate(&name, Some(self.device), inputs, outputs);
        self.sizes.insert(out, size);
        Ok(out)
    }

    /// Adds a weight of the file.
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<ValueId> {
        Ok(self
            .builder
            .constant(name, floats(shape)?.with_device(self.device)))
    }

    /// Adds what keeps its bytes from step to step.
    fn kept(&mut self, name: &str, scalar_type: ScalarType, shape: &[usize]) -> Result<ValueId> {
        let spec = TensorSpec::contiguous(scalar_type, shape, Device::CPU)?;
        let kept = self.builder.mutable_buffer(name, spec);
        self.sizes.insert(kept, shape.iter().product());
        Ok(kept)
    }

    /// Notes which kernel the node `name` is.
    fn name(&mut self, name: &str, kernel: Kernel) -> String {
        self.kernels.insert(name.to_owned(), kernel);
        name.to_owned()
    }

    /// Where a layer is in a block.
    fn paged(&self, layer: usize) -> PagedLayer {
        let before = self.config.layers.iter().take(layer);
        let before = before.filter(|&&mixer| mixer == Mixer::Attention).count();
        PagedLayer {
            positions: self.cache.positions,
            block: self.cache.block_len(self.config),
            first: before * self.cache.layer_len(self.config),
        }
    }
}

fn floats(shape: &[usize]) -> Result<TensorSpec> {
    TensorSpec::contiguous(ScalarType::Float, shape, Device::CPU)
}

fn longs(shape: &[usize]) -> Result<TensorSpec> {
    TensorSpec::contiguous(ScalarType::Long, shape, Device::CPU)
}
