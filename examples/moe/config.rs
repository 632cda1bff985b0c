//! What a model file says of its sizes.

use std::path::Path;

use serde_json::Value;

use crate::kernels::{DeltaHeads, Heads};

/// The sizes and constants of a model.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The length of what flows between layers.
    pub(crate) hidden: usize,
    /// How many tokens there are.
    pub(crate) vocabulary: usize,
    /// What each layer mixes positions with.
    pub(crate) layers: Vec<Mixer>,
    /// The heads of full attention.
    pub(crate) heads: Heads,
    /// The heads of linear attention, where there are such layers.
    pub(crate) delta: Option<DeltaHeads>,
    /// The width of the convolution of linear attention.
    pub(crate) convolution: usize,
    /// How many values of a head are turned by the position.
    pub(crate) rotary: usize,
    /// The base of the frequencies.
    pub(crate) theta: f32,
    /// How many experts there are, and how many see a token.
    pub(crate) experts: (usize, usize),
    /// The hidden length of an expert.
    pub(crate) expert_hidden: usize,
    /// The hidden length of the expert that sees every token, if there is one.
    pub(crate) shared_hidden: Option<usize>,
    /// What is added to the weights of a norm.
    pub(crate) norm_offset: f32,
    /// What is added to a mean square.
    pub(crate) epsilon: f32,
    /// Whether the projection of queries makes a gate for each too.
    pub(crate) gated: bool,
}

/// What a layer mixes positions with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mixer {
    /// Attention over all positions before.
    Attention,
    /// The gated delta rule, over a state of fixed size.
    Delta,
}

impl Config {
    /// Reads `NAME.config.json`, as the `transformers` package writes it.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let json: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        let number = |name: &str| {
            let value = json[name]
                .as_u64()
                .and_then(|value| usize::try_from(value).ok());
            value.ok_or_else(|| format!("{}: no number {name}", path.display()))
        };
        let rope = &json["rope_parameters"];
        let heads = Heads {
            queries: number("num_attention_heads")?,
            keys: number("num_key_value_heads")?,
            size: number("head_dim")?,
        };
        let hybrid = json["model_type"] == "qwen3_5_moe_text";
        let layers = match json["layer_types"].as_array() {
            Some(types) => types.iter().map(Mixer::of).collect::<Result<_, _>>()?,
            None => vec![Mixer::Attention; number("num_hidden_layers")?],
        };
        let delta = hybrid.then(|| {
            Ok::<_, String>(DeltaHeads {
                keys: number("linear_num_key_heads")?,
                values: number("linear_num_value_heads")?,
                key_size: number("linear_key_head_dim")?,
                value_size: number("linear_value_head_dim")?,
            })
        });
        let turned = rope["partial_rotary_factor"].as_f64().unwrap_or(1.0);
        Ok(Self {
            hidden: number("hidden_size")?,
            vocabulary: number("vocab_size")?,
            layers,
            heads,
            delta: delta.transpose()?,
            convolution: number("linear_conv_kernel_dim").unwrap_or(0),
            rotary: (heads.size as f64 * turned) as usize,
            theta: rope["rope_theta"].as_f64().unwrap_or(1e4) as f32,
            experts: (
                number("num_experts").or_else(|_| number("num_local_experts"))?,
                number("num_experts_per_tok")?,
            ),
            expert_hidden: number("moe_intermediate_size")?,
            shared_hidden: number("shared_expert_intermediate_size").ok(),
            norm_offset: if hybrid { 1.0 } else { 0.0 },
            epsilon: json["rms_norm_eps"].as_f64().unwrap_or(1e-6) as f32,
            gated: hybrid,
        })
    }
}

impl Mixer {
    fn of(name: &Value) -> Result<Self, String> {
        match name.as_str() {
            Some("full_attention") => Ok(Self::Attention),
            Some("linear_attention") => Ok(Self::Delta),
            _ => Err(format!("unknown type of layer {name}")),
        }
    }
}
