//! Models by the text that names them.

use std::path::{Path, PathBuf};

use shardloom_document::read_text;
use shardloom_graph::{Graph, ModelSpec, Network, OpKind};
use shardloom_interop::huggingface;

use crate::checkpoint_folder::refuse_checkpoints;
use crate::huggingface_folder::{CONFIG, folder_has_weights};
use crate::{Error, Result};

/// A model and its operator graph.
#[derive(Clone, Debug)]
pub struct Model {
    spec: ModelSpec,
    graph: Graph,
    /// Where weights of it are, if the text that named it says so.
    weights: Option<PathBuf>,
}

/// What a text may leave open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// Sequence length. A text that says one has it replaced.
    pub sequence_length: Option<usize>,
    /// Vocabulary size of a family whose text says none, such as that of a tokenizer.
    pub vocabulary: Option<usize>,
}

/// Families whose vocabulary and sequence length may be left to [`Defaults`].
const LANGUAGE_FAMILIES: [&str; 4] = ["gpt", "llama", "u-transformer", "lstm"];

/// Words before a colon that begin a description in one line, whatever follows.
const ONE_LINE: [&str; 7] = ["gpt", "llama", "mlp", "u-transformer", "lstm", "dlrm", "custom"];

impl Model {
    /// The names of published models.
    pub fn preset_names() -> impl Iterator<Item = &'static str> {
        ModelSpec::presets()
    }

    /// The model that `text` names: the path of a Hugging Face `config.json`, or of a folder with one,
    /// whose [weights](Model::weights) belong to it if it has any; the path of a model TOML, a preset
    /// (`llama-3-8b`), a family with parameters (`gpt:layers=2,hidden=64,heads=4,seq=32,vocab=256`), or what
    /// [`Model::text`] gives.
    ///
    /// ```
    /// use shardloom::Model;
    ///
    /// let model = Model::load("gpt:layers=2,hidden=64,heads=4,seq=32,vocab=256")?;
    /// assert_eq!(model.graph().blocks().len(), 4);
    /// assert_eq!(Model::load(&model.text())?.text(), model.text());
    /// # Ok::<(), shardloom::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a file cannot be read, or the description is wrong; the message names its line or key.
    pub fn load(text: &str) -> Result<Model> {
        Model::load_with(text, Defaults::default())
    }

    /// [`Model::load`], with what the text may leave open.
    ///
    /// ```
    /// use shardloom::{Defaults, Model};
    ///
    /// let bytes = Defaults { sequence_length: Some(64), vocabulary: Some(256) };
    /// let model = Model::load_with("gpt:layers=2,hidden=64,heads=4", bytes)?;
    /// assert_eq!(model.text(), "gpt:layers=2,hidden=64,heads=4,seq=64,vocab=256");
    /// # Ok::<(), shardloom::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_with(text: &str, defaults: Defaults) -> Result<Model> {
        let Defaults { sequence_length, vocabulary } = defaults;
        match Source::of(text) {
            Source::HuggingFace(path) => Model::configured(&path, sequence_length),
            Source::Folder(folder) => {
                refuse_checkpoints(
                    &folder,
                    "--huggingface DIR` writes a GPT or a Llama as a folder that can be named here",
                )?;
                let model = Model::configured(&folder.join(CONFIG), sequence_length)?;
                let weights = folder_has_weights(&folder).then_some(folder);
                Ok(Model { weights, ..model })
            }
            Source::Toml(path) => {
                let spec = ModelSpec::from_toml(&read(&path)?, &path.display().to_string())?;
                Model::of(with_sequence(spec, sequence_length)?)
            }
            Source::Onnx(path) => Err(Error::Onnx { path }),
            Source::Line => {
                let text = completed(text, sequence_length, vocabulary);
                let spec = ModelSpec::parse(&text).map_err(|error| match Path::new(&text) {
                    path if path.is_file() => Error::NoModelFile { path: path.into() },
                    _ => error.into(),
                })?;
                Model::of(with_sequence(spec, sequence_length)?)
            }
        }
    }

    /// Whether a text names a file or folder of another project, whose models have as many positions as they can ever
    /// take.
    pub fn is_configuration(text: &str) -> bool {
        matches!(Source::of(text), Source::HuggingFace(_) | Source::Folder(_))
    }

    /// How many positions were learned for the published model, or the one in a file of another project, that a text
    /// names; none if its positions are not learned. Longer samples are those of another model, for which there are no
    /// weights.
    pub fn learned_positions(text: &str) -> Option<usize> {
        if text.contains(':') && Model::is_line(text) {
            return None;
        }
        match Model::load(text).ok()?.spec.network() {
            Network::Gpt(gpt) if gpt.rotary.is_none() => Some(gpt.seq),
            _ => None,
        }
    }

    /// Whether a text describes a model by itself, and names no file or folder that does.
    pub(crate) fn is_line(text: &str) -> bool {
        matches!(Source::of(text), Source::Line)
    }

    fn configured(path: &Path, sequence_length: Option<usize>) -> Result<Model> {
        let place = path.display().to_string();
        Model::of(huggingface::read_config(&read(path)?, &place, sequence_length)?)
    }

    /// A model from its description.
    ///
    /// # Errors
    /// None for a description that exists: it was built once to check it.
    pub fn of(spec: ModelSpec) -> Result<Model> {
        let graph = spec.graph()?;
        Ok(Model { spec, graph, weights: None })
    }

    /// The same model with a head of another size: so many classes, or tokens of a vocabulary. Weights that belong
    /// to it are those of everything else.
    ///
    /// # Errors
    /// If the size is zero or absurd, or the model has no classes or is written as data.
    pub fn with_head(&self, classes: usize) -> Result<Model> {
        let model = Model::of(self.spec.with_head(classes)?)?;
        Ok(Model { weights: self.weights.clone(), ..model })
    }

    /// How many classes, or tokens of a vocabulary, its head tells apart, if it does.
    pub fn head_size(&self) -> Option<usize> {
        self.graph.class_count()
    }

    /// The folder with weights that the text named from which this model was loaded, if it named one.
    pub fn weights(&self) -> Option<&Path> {
        self.weights.as_deref()
    }

    /// The description.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The operator graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// One line from which [`Model::load`] gives an equal model, whatever happens to presets and files
    /// in between. Plans and checkpoints hold it.
    pub fn text(&self) -> String {
        self.spec.to_string()
    }

    /// Classes that the model's loss tells apart: two of a binary one, of a classifier as many as it has, of
    /// others the vocabulary.
    pub(crate) fn classes(&self) -> Option<usize> {
        if let Some(classes) = self.graph.sample_classes() {
            return Some(classes.count);
        }
        let loss = self.graph.value(self.graph.loss()).producer;
        match loss.map(|op| self.graph.op(op).kind) {
            Some(OpKind::SigmoidCrossEntropy) => Some(2),
            _ => self.vocabulary(),
        }
    }

    /// Tokens or classes that the model tells apart, if it has such a dimension. Padding does not count.
    pub fn vocabulary(&self) -> Option<usize> {
        let dim = self.graph.dim_named("vocab")?;
        let rows = Some(self.graph.dim(dim).size);
        if self.graph.class_dim() == Some(dim) { self.graph.class_count() } else { rows }
    }

    /// The same model with the rows of its tables padded to a multiple of so many; what it learns is the same. Weights
    /// that belong to it are those without padding.
    ///
    /// # Errors
    /// If it has no tables that can be padded, or they would be absurd.
    pub fn with_padding(&self, multiple: usize) -> Result<Model> {
        let model = Model::of(self.spec.with_padding(Some(multiple))?)?;
        Ok(Model { weights: self.weights.clone(), ..model })
    }
}

/// Where a text leads.
enum Source {
    HuggingFace(PathBuf),
    Folder(PathBuf),
    Toml(PathBuf),
    Onnx(PathBuf),
    Line,
}

impl Source {
    fn of(text: &str) -> Source {
        let head = text.split_once(':').map(|(head, _)| head.trim());
        if head.is_some_and(|head| ONE_LINE.contains(&head)) {
            return Source::Line;
        }
        let path = Path::new(text);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Source::HuggingFace(path.into()),
            Some("toml") => Source::Toml(path.into()),
            Some("onnx") => Source::Onnx(path.into()),
            _ if path.is_dir() => Source::Folder(path.into()),
            _ => Source::Line,
        }
    }
}

/// A family's text with what it leaves open.
fn completed(text: &str, sequence_length: Option<usize>, vocabulary: Option<usize>) -> String {
    let (head, pairs) = text.split_once(':').unwrap_or((text, ""));
    let mut text = text.trim().to_owned();
    if !LANGUAGE_FAMILIES.contains(&head.trim()) {
        return text;
    }
    let says = |key: &str| {
        pairs
            .split(',')
            .any(|pair| pair.split_once('=').is_some_and(|(each, _)| each.trim() == key))
    };
    for (key, value) in [("seq", sequence_length), ("vocab", vocabulary)] {
        if let Some(value) = value.filter(|_| !says(key)) {
            text += if text.contains(':') { "," } else { ":" };
            text += &format!("{key}={value}");
        }
    }
    text
}

fn with_sequence(spec: ModelSpec, sequence_length: Option<usize>) -> Result<ModelSpec> {
    match sequence_length {
        Some(length) if length != spec.seq() => Ok(spec.with_seq(length)?),
        _ => Ok(spec),
    }
}

pub(crate) fn read(path: &Path) -> Result<String> {
    read_text(path).map_err(Error::io("read", path))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn defaults_fill_in_only_what_a_family_leaves_open() {
        assert_eq!(completed("gpt:layers=1", Some(8), Some(256)), "gpt:layers=1,seq=8,vocab=256");
        assert_eq!(completed("gpt:vocab=9", None, Some(256)), "gpt:vocab=9");
        assert_eq!(completed("gpt", Some(8), None), "gpt:seq=8");
        assert_eq!(completed("gpt: seq = 4", Some(8), Some(256)), "gpt: seq = 4,vocab=256");
        assert_eq!(completed("u-transformer", Some(8), None), "u-transformer:seq=8");
        assert_eq!(completed(" gpt : layers=1 ", Some(8), None), "gpt : layers=1,seq=8");
        assert_eq!(completed("llama-3-8b", Some(8), Some(256)), "llama-3-8b");
        assert_eq!(completed("lstm:embed=3", Some(8), None), "lstm:embed=3,seq=8");
        assert_eq!(completed("mlp:inputs=3", Some(8), Some(256)), "mlp:inputs=3");
    }

    #[test]
    fn a_given_sequence_length_replaces_that_of_a_preset() {
        let defaults = Defaults { sequence_length: Some(128), vocabulary: Some(256) };
        let model = Model::load_with("gpt-2", defaults).expect("a preset");
        assert_eq!((model.spec().seq(), model.vocabulary()), (128, Some(50257)));
    }

    #[test]
    fn files_are_read_by_their_ending_and_what_is_wrong_in_them_is_said_with_their_path() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        for (name, text) in [("config.json", "{\"model_type\": \"none\"}"), ("a.toml", "a = 1")] {
            fs::write(path(name), text).expect("written");
            let error = Model::load(&path(name)).expect_err(name).to_string();
            assert!(error.contains(&path(name)), "{error}");
        }
        // The folder of a configuration is its configuration.
        let error = Model::load(&folder.path().display().to_string()).expect_err("of no kind");
        assert!(error.to_string().contains(&path("config.json")), "{error}");
        let text = "[model]\nfamily = \"none\"";
        fs::write(path("a.toml"), text).expect("written");
        let unknown = Model::load(&path("a.toml")).expect_err("no family").to_string();
        assert!(unknown.contains("a.toml:2") && unknown.contains("`family`"), "{unknown}");
        let gone = Model::load(&path("gone.json")).expect_err("there is none").to_string();
        assert!(gone.contains("gone.json"), "{gone}");
    }

    #[test]
    fn onnx_files_are_refused_with_what_is_read_instead() {
        let error = Model::load("resnet.onnx").expect_err("not read").to_string();
        assert!(error.contains("resnet.onnx") && error.contains("config.json"), "{error}");
    }
}
