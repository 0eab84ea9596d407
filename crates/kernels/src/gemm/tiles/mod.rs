//! The product of bfloat16 by the tile registers of AMX: of 16 rows of 64 bytes each, which hold rows of the left
//! operand, pairs of steps of the right one's columns, or a square of the result in fp32.
//!
//! Blocks are as in [`blocked`](super::blocked): the rows of two registers are multiplied with all panels of a block
//! of the right operand, which is packed and lies in the second-level cache. The left operand is read where it is, if
//! its rows are contiguous, whole and well spread over the cache's sets. Four registers hold the sums, so that each
//! one that is loaded is used twice.
//!
//! The compiler has no stable types for these registers: assembly names them, and uses them between [`Tiles::new`]
//! and its end. Nothing else in the program touches them.

mod pack;
mod target;

use std::arch::asm;
use std::mem::MaybeUninit;

use half::bf16;

use super::blocked::block_size;
use super::{Matrix, MatrixMut};
use pack::{Left, pack_right};

pub(super) use target::Target;

/// Rows of a register, and fp32 numbers or pairs of bfloat16 in each.
const SIDE: usize = 16;
/// Rows and columns of the result that are computed together.
const TILE: usize = 2 * SIDE;
/// Bytes of a register's row.
const ROW_BYTES: usize = 64;
/// Rows, columns and steps from which on tiles are faster.
const LEAST: usize = 8;
/// The most steps whose sums are complete when they leave the registers, so that they can be rounded.
pub(super) const MOST_STEPS: usize = 1024;

/// Whether products of these sizes are faster so than by vectors: a register's rows are used also where most are empty.
pub(super) fn are_faster(a: &Matrix<'_, bf16>, c: &MatrixMut<'_>) -> bool {
    a.rows >= LEAST && a.columns >= LEAST && c.columns >= LEAST
}

/// The tile registers, set up for this thread: all of 16 rows of 64 bytes.
struct Tiles(());

/// How the registers are used, as the processor reads it.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Tiles {
    /// # Safety
    /// The processor has AMX, and the operating system lets this process use it.
    unsafe fn new() -> Tiles {
        let mut configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        configuration.row_bytes[..8].fill(ROW_BYTES as u16);
        configuration.rows[..8].fill(SIDE as u8);
        // SAFETY: it reads the configuration, which is one that all of these processors take.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly));
        }
        Tiles(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: there are tile registers, as they were set up; it empties them, which saves the operating system
        // from keeping them.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// c = a b, or with `accumulate` c += a b, of bfloat16, where `b` has a row for each column of `c`. Results that are
/// rounded may have a bias, an element for each column, and are of at most [`MOST_STEPS`].
///
/// # Safety
/// The processor has AMX for bfloat16 and AVX-512 with BW and BF16, and the operating system lets this process use
/// them. The panels hold a [`TILE`] of [`MOST_STEPS`] at least.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn multiply<R: Target>(
    [left_panel, right_panels]: [&mut [f32]; 2],
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    bias: Option<&[f32]>,
    c: MatrixMut<'_, R>,
    accumulate: bool,
) {
    let (m, n, k, c_stride) = (c.rows, c.columns, a.columns, c.row_stride);
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        for row in 0..m {
            let c = &mut c.data[row * c_stride..][..n];
            for first in (0..n).step_by(TILE) {
                let columns = first..n.min(first + TILE);
                let bias = bias.map(|bias| &bias[columns.clone()]);
                // SAFETY: the caller promises the instructions.
                unsafe { R::put(&[0.0; TILE], bias, &mut c[columns], accumulate) };
            }
        }
        return;
    }
    let depth = block_size(k.div_ceil(2), SIDE, R::DEPTH);
    let block_columns = block_size(n, TILE, right_panels.len() / depth);
    // SAFETY: passed on from the caller.
    let _tiles = unsafe { Tiles::new() };
    for column in (0..n).step_by(block_columns) {
        let columns = column..n.min(column + block_columns);
        for step in (0..k).step_by(2 * depth) {
            let steps = step..k.min(step + 2 * depth);
            let depth = steps.len().div_ceil(2).next_multiple_of(SIDE);
            let right = &mut right_panels[..columns.len().next_multiple_of(TILE) * depth];
            pack_right(&b, columns.clone(), steps.clone(), right);
            for row in (0..m).step_by(TILE) {
                let rows = row..m.min(row + TILE);
                let left = Left::new(&a, rows.clone(), steps.clone(), left_panel);
                for (number, panel) in right.chunks_exact(TILE * depth).enumerate() {
                    let first = column + number * TILE;
                    let width = TILE.min(columns.end - first);
                    let c = &mut c.data[row * c_stride + first..];
                    let tile = Tile {
                        steps: depth / SIDE,
                        left,
                        right: panel.as_ptr(),
                        c,
                        c_stride,
                        height: rows.len(),
                        width,
                        bias: bias.map(|bias| &bias[first..first + width]),
                        accumulate: accumulate || step > 0,
                    };
                    // SAFETY: registers are set up, and the panels hold so many steps of the tile's rows and columns.
                    unsafe { tile.multiply() };
                }
            }
        }
    }
}

/// A tile of a product.
struct Tile<'a, R> {
    /// Registers of pairs of steps.
    steps: usize,
    left: Left,
    right: *const f32,
    /// From the first element on.
    c: &'a mut [R],
    c_stride: usize,
    height: usize,
    width: usize,
    bias: Option<&'a [f32]>,
    accumulate: bool,
}

/// Adds up the products of a tile: the instructions, of which operands in braces are named below, are executed for
/// each of its registers of steps.
macro_rules! add_products {
    ($tile:ident, $($instruction:literal),+) => {
        asm!(
            "2:",
            $($instruction,)+
            "add {upper}, {left_step}",
            "add {lower}, {left_step}",
            "add {right}, {right_step}",
            "dec {steps}",
            "jnz 2b",
            upper = inout(reg) $tile.left.first => _,
            lower = inout(reg) $tile.left.first.wrapping_add(SIDE * $tile.left.stride) => _,
            right = inout(reg) $tile.right => _,
            steps = inout(reg) $tile.steps => _,
            left_stride = in(reg) $tile.left.stride,
            left_step = in(reg) $tile.left.step_stride,
            right_stride = in(reg) TILE * size_of::<f32>(),
            right_step = const SIDE * TILE * size_of::<f32>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly),
        )
    };
}

/// Runs an instruction on the register that holds the sums of a square of the tile.
macro_rules! on_square {
    ($square:expr, $before:literal, $after:literal, $($operands:tt)*) => {
        match $square {
            [0, 0] => asm!(concat!($before, "tmm0", $after), $($operands)*),
            [0, 1] => asm!(concat!($before, "tmm1", $after), $($operands)*),
            [1, 0] => asm!(concat!($before, "tmm2", $after), $($operands)*),
            _ => asm!(concat!($before, "tmm3", $after), $($operands)*),
        }
    };
}

impl<R: Target> Tile<'_, R> {
    /// # Safety
    /// The registers are set up, and `left` and `right` hold `steps` registers of the tile's rows and columns, those
    /// that are not whole filled up. The processor has the instructions of [`multiply`].
    #[inline(always)]
    unsafe fn multiply(self) {
        let Tile { height, width, accumulate, c_stride, bias, .. } = self;
        assert!((height - 1) * c_stride + width <= self.c.len());
        let is_whole = height.is_multiple_of(SIDE) && width.is_multiple_of(SIDE);
        if let Some(c) = R::registers(self.c).filter(|_| is_whole) {
            // SAFETY: so many rows and columns lie in the slice, by the assertion.
            return unsafe { self.multiply_to(c, c_stride, accumulate) };
        }
        let mut sums = match width > SIDE {
            true => MaybeUninit::<[[f32; TILE]; TILE]>::uninit(),
            false => MaybeUninit::zeroed(),
        };
        // SAFETY: there is room for a whole tile.
        unsafe { self.multiply_to(sums.as_mut_ptr().cast(), TILE, false) };
        for (row, c) in self.c.chunks_mut(c_stride).take(height).enumerate() {
            // SAFETY: so many rows were written, of two registers, or of one beside zeros; the caller promises the
            // instructions.
            unsafe {
                let sums = &*sums.as_ptr().cast::<[f32; TILE]>().add(row);
                R::put(sums, bias, &mut c[..width], accumulate);
            }
        }
    }

    /// Writes whole registers to `c`.
    ///
    /// # Safety
    /// As of [`Tile::multiply`], and `c` is writable for as many rows, `stride` elements apart, and columns as the
    /// registers of the tile have; with `accumulate` also readable.
    unsafe fn multiply_to(&self, c: *mut f32, stride: usize, accumulate: bool) {
        let (has_lower, has_second) = (self.height > SIDE, self.width > SIDE);
        let squares = [[0, 0], [0, 1], [1, 0], [1, 1]];
        let squares = squares
            .into_iter()
            .filter(|it| it[0] <= usize::from(has_lower) && it[1] <= usize::from(has_second));
        let bytes = stride * size_of::<f32>();
        let at = |[row, column]: [usize; 2]| c.wrapping_add(SIDE * (row * stride + column));
        // SAFETY: registers are set up; what is read and written is what the caller promises.
        unsafe {
            for square in squares.clone() {
                match accumulate {
                    true => on_square!(
                        square, "tileloadd ", ", [{at} + {stride}]",
                        at = in(reg) at(square), stride = in(reg) bytes, options(nostack, readonly)
                    ),
                    false => on_square!(square, "tilezero ", "", options(nostack, nomem)),
                }
            }
            match (has_lower, has_second) {
                (true, true) => add_products!(
                    self,
                    "tileloadd tmm4, [{upper} + {left_stride}]",
                    "tileloadd tmm6, [{right} + {right_stride}]",
                    "tileloadd tmm5, [{lower} + {left_stride}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{right} + {right_stride} + 64]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tdpbf16ps tmm3, tmm5, tmm7"
                ),
                (true, false) => add_products!(
                    self,
                    "tileloadd tmm4, [{upper} + {left_stride}]",
                    "tileloadd tmm6, [{right} + {right_stride}]",
                    "tileloadd tmm5, [{lower} + {left_stride}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm2, tmm5, tmm6"
                ),
                (false, true) => add_products!(
                    self,
                    "tileloadd tmm4, [{upper} + {left_stride}]",
                    "tileloadd tmm6, [{right} + {right_stride}]",
                    "tileloadd tmm7, [{right} + {right_stride} + 64]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7"
                ),
                (false, false) => add_products!(
                    self,
                    "tileloadd tmm4, [{upper} + {left_stride}]",
                    "tileloadd tmm6, [{right} + {right_stride}]",
                    "tdpbf16ps tmm0, tmm4, tmm6"
                ),
            }
            for square in squares {
                on_square!(
                    square, "tilestored [{at} + {stride}], ", "",
                    at = in(reg) at(square), stride = in(reg) bytes, options(nostack)
                );
            }
        }
    }
}
