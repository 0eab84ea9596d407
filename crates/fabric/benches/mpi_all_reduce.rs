//! Time of an all-reduce of 64 MiB between two processes by the MPI library itself, for `benches/peer/run.py`.
//!
//! `cargo bench -p shardloom-fabric --features mpi --bench mpi_all_reduce --no-run`, then `mpirun -n 2` with what was
//! built. Rank 0 prints one object per all-reduce; it is over when the last rank is done.

use std::time::Instant;

use mpi::collective::SystemOperation;
use mpi::traits::{Communicator, CommunicatorCollectives};

const BYTES: usize = 64 << 20;
const WARM_UPS: usize = 2;
const REPEATS: usize = 15;

fn main() {
    let universe = mpi::initialize().expect("MPI is initialised once");
    let world = universe.world();
    let own = vec![1.0f32; BYTES / size_of::<f32>()];
    let mut sum = vec![0.0f32; own.len()];
    for repeat in 0..WARM_UPS + REPEATS {
        world.barrier();
        let start = Instant::now();
        world.all_reduce_into(&own[..], &mut sum[..], SystemOperation::sum());
        let (seconds, mut slowest) = (start.elapsed().as_secs_f64(), 0.0);
        world.all_reduce_into(&seconds, &mut slowest, SystemOperation::max());
        assert!(sum.iter().all(|&sum| sum == world.size() as f32), "what was summed is the sum");
        if repeat >= WARM_UPS && world.rank() == 0 {
            println!("{{\"step_seconds\":{slowest}}}");
        }
    }
}
