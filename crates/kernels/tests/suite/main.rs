//! Every kernel against a plain double-precision oracle, every gradient against central
//! differences of that oracle, at sizes that are no multiples of a vector.

mod activation;
mod attention;
mod attention_documents;
mod attention_empty;
mod chunked_passes;
mod collectives;
mod compression;
mod concat;
mod cross_entropy;
mod delayed_gradients;
mod device_updates;
mod dispatch;
mod dropout;
mod elementwise;
mod embedding;
mod interaction;
mod linear;
mod lstm;
mod memory;
mod norm;
mod operand_sizes;
mod operator_numbers;
mod optimizer;
mod oracle;
mod processor;
mod random;
mod reduce;
mod rotary;
mod rounding;
mod routing;
mod rows;
mod sampled_cross_entropy;
mod soft_cap;
mod tiers;
mod window;
