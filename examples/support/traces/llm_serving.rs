//! A language model that serves requests, as a runtime without paging does it.
//!
//! The model has the sizes of a decoder of eight billion parameters: 32 layers of
//! width 4096, eight heads of keys and values of width 128, an inner width of
//! 14,336, a vocabulary of 128,256, two bytes a number. Its weights, 16 GB in 291
//! blocks, are loaded once and stay.
//!
//! A scheduler step first admits up to two requests, with prompts of 16 to 2,048
//! tokens and answers of 16 to 96. Each has a key and a value cache a layer, with
//! room for its prompt rounded up to 128 tokens. A cache that is full is replaced
//! by one half as large again: the new block is allocated before the old one is
//! freed. The step then runs all layers over the new tokens: prompts as they are,
//! one token for each request that is under way. A layer allocates the
//! projections, the attention's output and the inner layer, and frees them in an
//! order that is not that of a stack. Requests end at their own times, and all
//! their caches with them. At most 24 run at once.

use device_memory::Tag;

use super::{Random, Trace};

const LAYERS: usize = 32;
const WIDTH: usize = 4096;
const KV_WIDTH: usize = 8 * 128;
const INNER: usize = 14_336;
const VOCABULARY: usize = 128_256;
const BYTES: usize = 2;

const STEPS: usize = 220;
const MOST_REQUESTS: usize = 24;

/// A request under way.
struct Request {
    tokens: usize,
    room: usize,
    left: usize,
    caches: Vec<usize>,
}

/// Makes the trace: some 145,000 calls.
pub(crate) fn generate(seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let mut trace = Trace::default();
    let weights = weights(&mut trace);
    let mut requests: Vec<Request> = Vec::new();
    for _ in 0..STEPS {
        let mut tokens = requests.len();
        for _ in 0..random.between(0, 2) {
            if requests.len() < MOST_REQUESTS {
                let request = admit(&mut trace, &mut random);
                tokens += request.tokens;
                requests.push(request);
            }
        }
        if tokens > 0 {
            forward(&mut trace, tokens, requests.len());
        }
        for request in &mut requests {
            advance(&mut trace, request);
        }
        let (ended, running) = requests.into_iter().partition(|request| request.left == 0);
        requests = running;
        let ended: Vec<Request> = ended;
        trace.free_all(ended.into_iter().flat_map(|request| request.caches));
    }
    trace.free_all(requests.into_iter().flat_map(|request| request.caches));
    trace.free_all(weights);
    trace
}

fn weights(trace: &mut Trace) -> Vec<usize> {
    let layer = [
        WIDTH,
        WIDTH * WIDTH,
        WIDTH * KV_WIDTH,
        WIDTH * KV_WIDTH,
        WIDTH * WIDTH,
        WIDTH,
        WIDTH * INNER,
        WIDTH * INNER,
        INNER * WIDTH,
    ];
    let layers = (0..LAYERS).flat_map(|_| layer);
    let ends = [VOCABULARY * WIDTH, WIDTH, VOCABULARY * WIDTH];
    ends.into_iter()
        .chain(layers)
        .map(|len| trace.allocate(len * BYTES, Tag::WEIGHTS))
        .collect()
}

/// The bytes of the keys, or of the values, of so many tokens in one layer.
fn cache_size(tokens: usize) -> usize {
    tokens * KV_WIDTH * BYTES
}

fn admit(trace: &mut Trace, random: &mut Random) -> Request {
    let tokens = random.between(16, 2048);
    let room = tokens.next_multiple_of(128);
    let caches = (0..2 * LAYERS).map(|_| trace.allocate(cache_size(room), Tag::KV_CACHE));
    Request {
        tokens,
        room,
        left: random.between(16, 96),
        caches: caches.collect(),
    }
}

/// All layers over `tokens` tokens, and the logits of each request's last.
fn forward(trace: &mut Trace, tokens: usize, requests: usize) {
    let row = tokens * BYTES;
    let mut hidden = trace.allocate(row * WIDTH, Tag::ACTIVATIONS);
    for _ in 0..LAYERS {
        let normed = trace.allocate(row * WIDTH, Tag::ACTIVATIONS);
        let query = trace.allocate(row * WIDTH, Tag::ACTIVATIONS);
        let key_value = trace.allocate(row * 2 * KV_WIDTH, Tag::ACTIVATIONS);
        trace.free(normed);
        let scratch = trace.allocate(4 * 1024 * 1024 + 16 * row, Tag::SCRATCH);
        let attended = trace.allocate(row * WIDTH, Tag::ACTIVATIONS);
        trace.free(scratch);
        trace.free(query);
        trace.free(key_value);
        let after = trace.allocate(row * WIDTH, Tag::ACTIVATIONS);
        trace.free(hidden);
        trace.free(attended);
        let gate = trace.allocate(row * INNER, Tag::ACTIVATIONS);
        let up = trace.allocate(row * INNER, Tag::ACTIVATIONS);
        trace.free(gate);
        let out = trace.allocate(row * WIDTH, Tag::ACTIVATIONS);
        trace.free(up);
        trace.free(after);
        hidden = out;
    }
    let logits = trace.allocate(requests * VOCABULARY * 4, Tag::ACTIVATIONS);
    trace.free(hidden);
    trace.free(logits);
}

/// One more token; caches without room for it are replaced.
fn advance(trace: &mut Trace, request: &mut Request) {
    request.tokens += 1;
    request.left -= 1;
    if request.tokens > request.room {
        request.room = (request.room * 3 / 2).next_multiple_of(128);
        for cache in &mut request.caches {
            let larger = trace.allocate(cache_size(request.room), Tag::KV_CACHE);
            trace.free(*cache);
            *cache = larger;
        }
    }
}
