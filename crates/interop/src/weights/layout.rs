//! How one parameter lies in a tensor of a file.

use super::Tensor;

/// A parameter seen as a matrix.
#[derive(Debug)]
pub(super) struct Matrix {
    /// Its shape with all axes.
    pub shape: Vec<usize>,
    /// Product of the extents of its row axes; 1 of a vector, which has none.
    pub rows: usize,
    /// Product of the extents of its other axes.
    pub columns: usize,
    /// Whether it is a bias or gain: files hold those with one axis.
    pub is_vector: bool,
}

/// Which part of a tensor a parameter is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// All of it, with rows and columns exchanged.
    Transposed,
    /// The n-th of the matrices that lie side by side in it.
    Beside(usize),
    /// The n-th of the matrices that lie one below the other in it, each with rows and columns exchanged.
    Stacked(usize),
    /// Its first rows.
    FirstRows,
}

/// Which columns of what a tensor holds a parameter has, of all parameters that lie in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// How many columns the parameters before it have together.
    pub before: usize,
    /// How many columns all of them have together.
    pub all: usize,
}

impl Part {
    /// Its number among the parameters that lie in the same tensor.
    pub(super) fn number(self) -> usize {
        match self {
            Part::Beside(number) | Part::Stacked(number) => number,
            Part::Whole | Part::Transposed | Part::FirstRows => 0,
        }
    }

    /// The parameter's elements, or what shape the tensor must have.
    pub(super) fn read(
        self,
        matrix: &Matrix,
        place: Place,
        tensor: &Tensor,
    ) -> Result<Vec<f32>, String> {
        let needed = self.shape(matrix, place);
        let fits = match self {
            Part::FirstRows => {
                tensor.shape.len() == needed.len()
                    && tensor.shape[1..] == needed[1..]
                    && tensor.shape[0] >= needed[0]
            }
            _ => tensor.shape == needed,
        };
        if !fits {
            let first = if self == Part::FirstRows { ", or more rows," } else { "" };
            return Err(format!("{needed:?}{first} is needed"));
        }
        let (rows, columns) = (matrix.rows, matrix.columns);
        Ok(match self {
            Part::Whole => tensor.values.clone(),
            Part::FirstRows => tensor.values[..rows * columns].to_vec(),
            Part::Transposed | Part::Stacked(_) => {
                let start = place.before * rows;
                transposed(&tensor.values[start..start + columns * rows], columns, rows)
            }
            Part::Beside(_) => tensor
                .values
                .chunks_exact(place.all)
                .flat_map(|row| &row[place.before..place.before + columns])
                .copied()
                .collect(),
        })
    }

    /// Writes the parameter's elements into a tensor made by [`Part::empty`].
    pub(super) fn write(
        self,
        matrix: &Matrix,
        place: Place,
        values: Vec<f32>,
        tensor: &mut Tensor,
    ) {
        let (rows, columns) = (matrix.rows, matrix.columns);
        match self {
            Part::Whole | Part::FirstRows => tensor.values = values,
            Part::Transposed => tensor.values = transposed(&values, rows, columns),
            Part::Stacked(_) => {
                let start = place.before * rows;
                let values = transposed(&values, rows, columns);
                tensor.values[start..start + columns * rows].copy_from_slice(&values);
            }
            Part::Beside(_) => {
                let whole = tensor.values.chunks_exact_mut(place.all);
                for (row, values) in whole.zip(values.chunks_exact(columns)) {
                    row[place.before..place.before + columns].copy_from_slice(values);
                }
            }
        }
    }

    /// The tensor that holds such a part, before anything is written into it.
    pub(super) fn empty(self, matrix: &Matrix, place: Place) -> Tensor {
        let shape = self.shape(matrix, place);
        let values = match self {
            // It is replaced whole.
            Part::Whole | Part::FirstRows | Part::Transposed => vec![],
            Part::Beside(_) | Part::Stacked(_) => vec![0.0; shape.iter().product()],
        };
        Tensor { shape, values }
    }

    /// The shape of the tensor that holds such a part.
    pub(super) fn shape(self, matrix: &Matrix, place: Place) -> Vec<usize> {
        let rows = matrix.rows;
        let shape = match self {
            Part::Whole | Part::FirstRows | Part::Beside(_) => [rows, place.all],
            Part::Transposed | Part::Stacked(_) => [place.all, rows],
        };
        if matrix.is_vector { shape[1..].to_vec() } else { shape.to_vec() }
    }
}

/// The transpose of a `rows x columns` matrix.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for column in 0..columns {
        out.extend((0..rows).map(|row| values[row * columns + column]));
    }
    out
}
