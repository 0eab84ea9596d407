//! What Open MPI, Slurm and Kubernetes are told.

use std::fmt::Write;

use shardloom::cluster::Hosts;

use crate::failure::Failure;

/// Variables that change what a run does, which `mpirun` passes on only if told.
const PASSED_ON: [&str; 1] = [shardloom::train::KERNELS_VARIABLE];

/// What Open MPI is told for any run: processes have all cores, as each may have several ranks.
const OPTIONS: [&str; 2] = ["--bind-to", "none"];

/// The line that has Open MPI start all processes, word by word.
pub fn mpirun(hosts: &Hosts, program: &str, command: &[String]) -> Vec<String> {
    let mut line = vec!["mpirun".to_owned(), "--host".to_owned(), hosts.to_string()];
    line.extend(["-n".to_owned(), hosts.processes().to_string()]);
    line.extend(OPTIONS.map(str::to_owned));
    for variable in PASSED_ON.into_iter().filter(|it| std::env::var_os(it).is_some()) {
        line.extend(["-x".to_owned(), variable.to_owned()]);
    }
    line.push(program.to_owned());
    line.extend_from_slice(command);
    line
}

/// A line as a shell reads it.
pub fn quoted(line: &[String]) -> String {
    let words = line.iter().map(|word| {
        // Arguments of programs have no zero bytes.
        shlex::try_quote(word).map_or_else(|_| word.clone(), |quoted| quoted.into_owned())
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A batch script. Slurm chooses cores and sees to it that all processes end with one that fails.
///
/// # Errors
/// If machines have different numbers of processes, which Slurm is told one of.
pub fn slurm(hosts: &Hosts, command: &[String]) -> Result<String, Failure> {
    let each = equal(hosts, "--slurm")?;
    let nodes = hosts.0.len();
    let names: Vec<&str> = hosts.0.iter().map(|(name, _)| name.as_str()).collect();
    let line = [&["shardloom".to_owned()], command].concat();
    Ok(format!(
        "#!/bin/bash\n\
         #SBATCH --job-name=shardloom\n\
         #SBATCH --nodes={nodes}\n\
         #SBATCH --nodelist={}\n\
         #SBATCH --ntasks-per-node={each}\n\
         \n\
         srun --mpi=pmix --kill-on-bad-exit=1 {}\n",
        names.join(","),
        quoted(&line)
    ))
}

/// A manifest for the MPI operator, whose launcher runs `mpirun` among the workers.
///
/// # Errors
/// If machines have different numbers of processes, which workers have one of.
pub fn kubernetes(hosts: &Hosts, image: &str, command: &[String]) -> Result<String, Failure> {
    let each = equal(hosts, "--kubernetes")?;
    let processes = hosts.processes().to_string();
    let mut line = ["mpirun", "-n", &processes].map(str::to_owned).to_vec();
    line.extend([&OPTIONS[..], &["shardloom"]].concat().into_iter().map(str::to_owned));
    line.extend_from_slice(command);
    let workers = hosts.0.len();
    // Texts of JSON are texts of YAML.
    let text = |word: &str| serde_json::Value::from(word).to_string();
    let mut manifest = format!(
        "# Add the volumes that hold plan, data and checkpoints: all containers need the same.\n\
         apiVersion: kubeflow.org/v2beta1\n\
         kind: MPIJob\n\
         metadata:\n\
         \x20 name: shardloom\n\
         spec:\n\
         \x20 slotsPerWorker: {each}\n\
         \x20 runPolicy:\n\
         \x20   cleanPodPolicy: Running\n\
         \x20 mpiReplicaSpecs:\n"
    );
    let mut replicas = |kind: &str, number: usize, command: &str| {
        let image = text(image);
        let _ = write!(
            manifest,
            "    {kind}:\n\
             \x20     replicas: {number}\n\
             \x20     template:\n\
             \x20       spec:\n\
             \x20         containers:\n\
             \x20         - name: shardloom\n\
             \x20           image: {image}\n{command}"
        );
    };
    let words: Vec<String> = line.iter().map(|word| text(word)).collect();
    let launched = format!("            command: [{}]\n", words.join(", "));
    replicas("Launcher", 1, &launched);
    // Workers run what the image runs: the server that the launcher reaches them by.
    replicas("Worker", workers, &format!("            resources: {{limits: {{cpu: {each}}}}}\n"));
    Ok(manifest)
}

fn equal(hosts: &Hosts, option: &str) -> Result<u32, Failure> {
    hosts.each().map(std::num::NonZeroU32::get).ok_or_else(|| {
        let message = format!(
            "{option}: all machines need as many processes there; give each of them the same number"
        );
        Failure::usage("--hosts", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split('|').map(str::to_owned).collect()
    }

    fn hosts(text: &str) -> Hosts {
        text.parse().expect("machines")
    }

    #[test]
    fn a_line_starts_as_many_processes_as_there_are_places_and_is_read_back_word_by_word() {
        let command = words("train|plan.toml|--data|my data/it's.txt");
        let line = mpirun(&hosts("a:8,b:4"), "/opt/shardloom", &command);
        let expected = "mpirun|--host|a:8,b:4|-n|12|--bind-to|none|/opt/shardloom|train|plan.toml|--data|my data/it's.txt";
        assert_eq!(line, words(expected));
        assert_eq!(shlex::split(&quoted(&line)), Some(line));
    }

    #[test]
    fn a_batch_script_asks_for_the_machines_and_their_processes() {
        let script = slurm(&hosts("n1:4,n2:4"), &words("train|p.toml|--steps|5")).expect("equal");
        assert_eq!(
            script,
            "#!/bin/bash\n#SBATCH --job-name=shardloom\n#SBATCH --nodes=2\n#SBATCH --nodelist=n1,n2\n\
             #SBATCH --ntasks-per-node=4\n\n\
             srun --mpi=pmix --kill-on-bad-exit=1 shardloom train p.toml --steps 5\n"
        );
        assert!(slurm(&hosts("n1:4,n2:3"), &words("train")).is_err());
    }

    #[test]
    fn a_manifest_is_yaml_with_a_launcher_and_workers() {
        let command = words("train|a \"b\": c.toml");
        let manifest = kubernetes(&hosts("a:4,b:4,c:4"), "reg/im:1", &command).expect("equal");
        let read = yaml_rust2::YamlLoader::load_from_str(&manifest).expect("YAML");
        let spec = &read[0]["spec"];
        assert_eq!(spec["slotsPerWorker"].as_i64(), Some(4));
        let replicas = |kind: &str| &spec["mpiReplicaSpecs"][kind];
        let container = |kind: &str| &replicas(kind)["template"]["spec"]["containers"][0];
        assert_eq!(replicas("Launcher")["replicas"].as_i64(), Some(1));
        assert_eq!(replicas("Worker")["replicas"].as_i64(), Some(3));
        assert_eq!(container("Worker")["image"].as_str(), Some("reg/im:1"));
        let launched = container("Launcher")["command"].as_vec().expect("a list");
        let launched: Vec<&str> = launched.iter().filter_map(|word| word.as_str()).collect();
        assert_eq!(launched[..3], ["mpirun", "-n", "12"]);
        assert_eq!(launched[5..], ["shardloom", "train", "a \"b\": c.toml"]);
    }
}
