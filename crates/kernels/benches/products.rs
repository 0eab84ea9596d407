//! The matrix products of training steps, each against what the processor can do at most: multiply-adds from
//! registers to registers.
//!
//! Run with `cargo bench -p shardloom-kernels --bench products`; with `-- --bf16` operands are in bfloat16 (where
//! the tier multiplies that), with `-- --json` it prints a JSON object for the peak and one for each product, which
//! `benches/peer/products.py` holds against PyTorch's.

use std::env;
use std::hint::black_box;
use std::time::Instant;

use half::bf16;
use shardloom_kernels::matmul::{
    Factor, Linear, Product, WeightLayout, linear, linear_input_grad, linear_weight_grad,
    writes_bf16,
};
use shardloom_kernels::random::{Key, normal_fill};
use shardloom_kernels::tier::Tier;
use shardloom_kernels::window::Window;

/// Each product is repeated for about so long between two looks at the clock, and so often.
const SECONDS: f64 = 0.02;
const REPEATS: usize = 15;

/// Which of a layer's three products.
#[derive(Clone, Copy)]
enum Pass {
    Forward,
    Input,
    Weight,
}

/// A linear layer, or as many small ones as a batch of heads has.
struct Case {
    name: &'static str,
    batch: usize,
    shape: Linear,
}

const fn layer(name: &'static str, rows: usize, inputs: usize, outputs: usize) -> Case {
    let layout = WeightLayout::InputsByOutputs;
    Case { name, batch: 1, shape: Linear { rows, inputs, outputs, layout } }
}

/// Those of the two models of `benches/peer` (1,024 positions of width 256 and 512), a square one, and a head's
/// scores and context of a tile of queries.
const PRODUCTS: [Case; 12] = [
    layer("query, key and value, d 256", 1024, 256, 768),
    layer("output of attention, d 256", 1024, 256, 256),
    layer("feed-forward up, d 256", 1024, 256, 1024),
    layer("feed-forward down, d 256", 1024, 1024, 256),
    layer("vocabulary, d 256", 1024, 256, 8192),
    layer("query, key and value, d 512", 1024, 512, 1536),
    layer("feed-forward up, d 512", 1024, 512, 2048),
    layer("feed-forward down, d 512", 1024, 2048, 512),
    layer("vocabulary, d 512", 1024, 512, 8192),
    layer("square", 2048, 2048, 2048),
    Case {
        name: "scores of 32 heads",
        batch: 32,
        shape: Linear { rows: 64, inputs: 64, outputs: 256, layout: WeightLayout::OutputsByInputs },
    },
    Case {
        name: "context of 32 heads",
        batch: 32,
        shape: Linear { rows: 64, inputs: 256, outputs: 64, layout: WeightLayout::InputsByOutputs },
    },
];

impl Pass {
    const ALL: [Pass; 3] = [Pass::Forward, Pass::Input, Pass::Weight];

    fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Input => "input",
            Pass::Weight => "weight",
        }
    }
}

impl Case {
    /// Operations a second of a pass, on fp32 or on bfloat16, which is also what the result is in where training
    /// writes it as it is computed. Gradients of weights are in fp32, and added onto what is there.
    fn speed(&self, pass: Pass, in_bf16: bool) -> f64 {
        let summed = match pass {
            Pass::Forward => self.shape.inputs,
            Pass::Input => self.shape.outputs,
            Pass::Weight => usize::MAX,
        };
        match in_bf16 {
            true if writes_bf16(summed) => {
                self.flops::<bf16, bf16>(pass, bf16::from_f32, bf16::ZERO)
            }
            true => self.flops::<bf16, f32>(pass, bf16::from_f32, 0.0),
            false => self.flops::<f32, f32>(pass, |it| it, 0.0),
        }
    }

    /// The same with operands that are made by `of` of fp32 numbers, and a result that is zero at first.
    fn flops<T: Factor, R: Product<T>>(&self, pass: Pass, of: impl Fn(f32) -> T, zero: R) -> f64 {
        let shape = self.shape;
        let sizes =
            [shape.rows * shape.inputs, shape.inputs * shape.outputs, shape.rows * shape.outputs];
        let operands = sizes
            .map(|elements| normal(self.batch * elements).into_iter().map(&of).collect::<Vec<T>>());
        let written = match pass {
            Pass::Forward => 2,
            Pass::Input => 0,
            Pass::Weight => 1,
        };
        let mut result = vec![zero; self.batch * sizes[written]];
        let operations = 2 * self.batch * shape.rows * shape.inputs * shape.outputs;
        let seconds = median_seconds(|| {
            for (number, result) in result.chunks_exact_mut(sizes[written]).enumerate() {
                let part = |index: usize| &operands[index][number * sizes[index]..][..sizes[index]];
                let [x, w, y] = [part(0), part(1), part(2)];
                match pass {
                    Pass::Forward => linear(shape, x, w, None, result),
                    Pass::Input => linear_input_grad(shape, y, w, result, false),
                    Pass::Weight => linear_weight_grad(shape, x, y, result, true),
                }
            }
            black_box(&mut result);
        });
        operations as f64 / seconds
    }
}

fn normal(elements: usize) -> Vec<f32> {
    let mut values = vec![0.0; elements];
    let key = Key { seed: 1, stream: 2, step: 3 };
    normal_fill(key, &Window::whole(&[elements]), 0.0, 1e-3, &mut values);
    values
}

/// Seconds of one call, by the median of some measurements.
fn median_seconds(mut call: impl FnMut()) -> f64 {
    let mut timed = |calls: usize| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_secs_f64() / calls as f64
    };
    timed(1);
    let calls = (SECONDS / timed(1)).ceil() as usize;
    let mut seconds: Vec<f64> = (0..REPEATS).map(|_| timed(calls)).collect();
    seconds.sort_by(f64::total_cmp);
    seconds[REPEATS / 2]
}

/// Operations a second of multiply-adds, of fp32 or of bfloat16, whose operands and results stay in registers; none
/// where the tier has no instructions for them.
fn peak_flops(tier: Tier, in_bf16: bool) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    {
        const STEPS: usize = 100_000;
        let (operations, run): (usize, unsafe fn(usize)) = match (tier, in_bf16) {
            (Tier::Avx512Bf16, true) => (registers::OPERATIONS_BF16, registers::run_bf16),
            (Tier::Amx, true) => (registers::OPERATIONS_TILES, registers::run_tiles),
            (Tier::Portable, false) | (_, true) => return None,
            (Tier::Avx512 | Tier::Avx512Bf16 | Tier::Amx, false) => {
                (registers::OPERATIONS_512, registers::run_512)
            }
            (Tier::Avx2, false) => (registers::OPERATIONS_256, registers::run_256),
        };
        // SAFETY: a tier is selected only if the processor has its instructions.
        let seconds = median_seconds(|| unsafe { run(STEPS) });
        Some((operations * STEPS) as f64 / seconds)
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Chains of multiply-adds, more of them than the instructions take cycles.
#[cfg(target_arch = "x86_64")]
mod registers {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    const CHAINS: usize = 12;
    /// Operations of a step.
    pub const OPERATIONS_512: usize = 2 * 16 * CHAINS;
    pub const OPERATIONS_256: usize = 2 * 8 * CHAINS;
    pub const OPERATIONS_BF16: usize = 2 * 32 * CHAINS;

    /// Four products of registers of 16 x 32 and 32 x 16.
    pub const OPERATIONS_TILES: usize = 4 * 2 * 16 * 16 * 32;

    /// How the tile registers of AMX are used.
    #[repr(C, align(64))]
    struct Tiles {
        palette: u8,
        reserved: [u8; 15],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    pub fn run_tiles(steps: usize) {
        let mut tiles = Tiles { palette: 1, reserved: [0; 15], row_bytes: [0; 16], rows: [0; 16] };
        tiles.row_bytes[..8].fill(64);
        tiles.rows[..8].fill(16);
        // SAFETY: the tier is selected only where the processor has the registers and the process may use them,
        // which nothing else does meanwhile.
        unsafe {
            std::arch::asm!(
                "ldtilecfg [{tiles}]",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {steps}",
                "jnz 2b",
                "tilerelease",
                tiles = in(reg) &raw const tiles,
                steps = inout(reg) steps => _,
                options(nostack, readonly),
            );
        }
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub fn run_bf16(steps: usize) {
        let factor = _mm512_set1_ps(black_box(0.5));
        // SAFETY: any bits are pairs of bfloat16.
        let factor: __m512bh = unsafe { std::mem::transmute(factor) };
        let mut sums: [__m512; CHAINS] = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, factor, factor);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f")]
    pub fn run_512(steps: usize) {
        let factor = _mm512_set1_ps(black_box(0.5));
        let mut sums: [__m512; CHAINS] = [_mm512_setzero_ps(); CHAINS];
        for (index, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_set1_ps(index as f32);
        }
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, factor, factor);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn run_256(steps: usize) {
        let factor = _mm256_set1_ps(black_box(0.5));
        let mut sums: [__m256; CHAINS] = [_mm256_setzero_ps(); CHAINS];
        for (index, sum) in sums.iter_mut().enumerate() {
            *sum = _mm256_set1_ps(index as f32);
        }
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, factor);
            }
        }
        black_box(sums);
    }
}

fn main() {
    let [json, in_bf16] =
        ["--json", "--bf16"].map(|option| env::args().any(|argument| argument == option));
    let tier = match Tier::selected() {
        Ok(tier) => tier,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    };
    if in_bf16 && !matches!(tier, Tier::Avx512Bf16 | Tier::Amx) {
        eprintln!("--bf16: {tier} widens bfloat16 and multiplies fp32; run without it");
        std::process::exit(2);
    }
    let peak = peak_flops(tier, in_bf16);
    match (json, peak) {
        (true, Some(peak)) => println!(r#"{{"tier":"{tier}","peak_flops":{peak}}}"#),
        (true, None) => println!(r#"{{"tier":"{tier}","peak_flops":null}}"#),
        (false, Some(peak)) => {
            println!("{tier}: {:.1} GFLOP/s from registers to registers", peak / 1e9);
        }
        (false, None) => println!("{tier}"),
    }
    for product in &PRODUCTS {
        let Case { name, batch, shape: Linear { rows, inputs, outputs, .. } } = product;
        for pass in Pass::ALL {
            let flops = product.speed(pass, in_bf16);
            let pass = pass.name();
            if json {
                println!(
                    r#"{{"product":"{name}","pass":"{pass}","batch":{batch},"rows":{rows},"inputs":{inputs},"outputs":{outputs},"flops":{flops}}}"#
                );
                continue;
            }
            let share = peak.map_or(String::new(), |peak| format!(", {:.2} of it", flops / peak));
            println!(
                "{name} ({rows} x {inputs} x {outputs}), {pass}: {:.1} GFLOP/s{share}",
                flops / 1e9
            );
        }
    }
}
