//! An MPI job of one process, in which all ranks live: what they tell each other passes through MPI. And one of two.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    sync::OnceLock,
};

use shardloom_fabric::{
    Contents, Endpoint, Engine, FabricError, MessagePassing, Mpi, Overlapped, Process, Settings,
};

use crate::progress::{self, Ended};
use crate::ranks::{PATIENT, on_ranks};

/// MPI is started once in a process.
pub fn engine() -> &'static MessagePassing {
    static ENGINE: OnceLock<MessagePassing> = OnceLock::new();
    ENGINE.get_or_init(|| MessagePassing::over(Box::new(Mpi::start().unwrap())).unwrap())
}

/// The same, for engines that own another.
pub struct Job;

impl Engine<Contents> for Job {
    fn process(&self) -> Process {
        Engine::<Contents>::process(engine())
    }

    fn connect(
        &self,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<Contents>>>, FabricError> {
        engine().connect(ranks, settings)
    }

    fn connect_in(
        &self,
        processes: &[u32],
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<Contents>>>, FabricError> {
        engine().connect_in(processes, settings)
    }
}

/// Processes that leave files for each other.
struct Files(PathBuf);

impl Files {
    fn of(&self, number: usize, rank: u32) -> PathBuf {
        self.0.join(format!("{number}.{rank}"))
    }
}

impl Ended for Files {
    fn note(&self, number: usize, rank: u32) {
        fs::write(self.of(number, rank), "").unwrap();
    }

    fn all(&self, number: usize) -> bool {
        (0..2).all(|rank| self.of(number, rank).exists())
    }
}

/// Says to this program that `mpirun` started it, and where files go.
const FOLDER: &str = "SHARDLOOM_TEST_FOLDER_OF_JOB";

#[test]
fn mpi_processes_compute_until_what_they_started_has_ended() {
    if let Some(folder) = env::var_os(FOLDER) {
        let ended = Files(folder.into());
        let engine = MessagePassing::over(Box::new(Mpi::start().unwrap())).unwrap();
        assert_eq!(Engine::<Contents>::process(&engine).of, 2);
        on_ranks(&Overlapped(engine), 2, PATIENT, |rank| progress::rank_of_two(rank, &ended));
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("job of {}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let name = "job::mpi_processes_compute_until_what_they_started_has_ended";
    let output = Command::new("mpirun")
        .args(["-n", "2"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(FOLDER, &folder)
        // Containers know no other user than root, and machines may have fewer cores.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("OMPI_MCA_hwloc_base_binding_policy", "none")
        .stdin(Stdio::null())
        .output()
        .expect("mpirun is installed");
    let ended = Files(folder.clone());
    let all = (0..progress::COLLECTIVES).all(|number| ended.all(number));
    fs::remove_dir_all(&folder).unwrap();
    let told = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    assert!(output.status.success() && all, "{}\n{}", told[0], told[1]);
}
