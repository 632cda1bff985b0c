//! A cache of keys and values in blocks: two answers share the blocks of their
//! prompt until one of them writes. Needs no device.
//!
//! `cargo run --example kv_cache`

#![expect(clippy::print_stdout, reason = "an example")]

use device_memory::{Block, BlockPool, DeviceLayout, DeviceMemoryBuffer, DeviceType, Result};

/// Bytes of a token, and tokens of a block.
const TOKEN: usize = 64;
const TOKENS: usize = 16;

/// A sequence: its blocks in order, and how many tokens they hold.
struct Sequence {
    blocks: Vec<Block>,
    tokens: usize,
}

impl Sequence {
    fn push(&mut self, pool: &BlockPool, token: [u8; TOKEN]) -> Result<()> {
        let at = self.tokens % TOKENS;
        if at == 0 {
            self.blocks.push(pool.block()?);
        }
        if let Some(last) = self.blocks.last_mut() {
            let mut block = last.make_mut()?;
            block
                .subspan_mut(at * TOKEN, TOKEN)?
                .copy_from_host(&token)?;
        }
        self.tokens += 1;
        Ok(())
    }

    fn fork(&self) -> Self {
        Self {
            blocks: self.blocks.iter().map(Block::fork).collect(),
            tokens: self.tokens,
        }
    }

    /// What a kernel is given: the numbers of the blocks.
    fn page_table(&self) -> Vec<u32> {
        self.blocks.iter().map(Block::index).collect()
    }
}

fn main() -> Result<()> {
    let size = DeviceLayout::array::<[u8; TOKEN]>(8 * TOKENS)?.size();
    let buffer = DeviceMemoryBuffer::create(size, DeviceType::Cpu, 0)?;
    let pool = BlockPool::new(buffer, TOKEN * TOKENS)?;

    let mut prompt = Sequence {
        blocks: Vec::new(),
        tokens: 0,
    };
    for token in 0..40 {
        prompt.push(&pool, [token; TOKEN])?;
    }
    let mut answer = prompt.fork();
    answer.push(&pool, [100; TOKEN])?;

    println!("prompt: blocks {:?}", prompt.page_table());
    println!("answer: blocks {:?}", answer.page_table());
    println!("{} of {} blocks free", pool.free_blocks(), pool.blocks());
    assert_eq!(prompt.page_table(), [0, 1, 2]);
    assert_eq!(answer.page_table(), [0, 1, 3]);
    drop((prompt, answer));
    assert_eq!(pool.free_blocks(), pool.blocks());
    Ok(())
}
