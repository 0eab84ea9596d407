//! A published system.

use std::borrow::Cow;
use std::cell::RefCell;

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Optimizer, Precision, Recompute, Updates, Weights};
use shardloom_search::{Request, Trials, with_fastest_reductions};

use crate::choice::{Measure, Task};
use crate::{Choice, MethodError};

/// A published system.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What kind of system it is.
    pub family: Family,
    /// Authors, title, venue, and arXiv number where there is one.
    pub paper: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    pub(crate) rules: fn(&Optimizer) -> Rules,
    pub(crate) chooser: fn(&mut Task<'_>) -> Result<Choice, MethodError>,
}

/// What a system says of a step besides the order of passes, wherever stages are cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Which version of the weights passes run with, and what makes up for late gradients.
    pub weights: Weights,
    /// When stages update. Of what updates in rounds each micro-batch is a batch of its own: a step is
    /// one, or the plan says [`Updates::Round`], where its rule for weights allows that.
    pub updates: Updates,
    /// Which activations are computed twice; none if the system leaves that open.
    pub recompute: Option<Recompute>,
}

impl Rules {
    /// Those of systems with a flush.
    pub(crate) const FLUSH: Rules =
        Rules { weights: Weights::Flush, updates: Updates::Step, recompute: None };
}

/// What kind of system a method is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Replicas of the whole model.
    DataParallel,
    /// Data, tensor and pipeline parallelism together, by rules.
    ThreeDimensional,
    /// A pipeline that a flush empties before weights are updated, so that training is exact.
    SynchronousPipeline,
    /// Such a pipeline with backward passes split in two.
    ZeroBubblePipeline,
    /// Such pipelines in both directions over the same devices.
    BidirectionalPipeline,
    /// A pipeline that is never emptied, so that some passes run with old weights.
    AsynchronousPipeline,
}

impl Family {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Family::DataParallel => "data parallelism",
            Family::ThreeDimensional => "3D parallelism",
            Family::SynchronousPipeline => "synchronous pipeline",
            Family::ZeroBubblePipeline => "zero-bubble pipeline",
            Family::BidirectionalPipeline => "bidirectional pipeline",
            Family::AsynchronousPipeline => "asynchronous pipeline",
        }
    }
}

impl Method {
    /// What the system says of a step with this optimizer.
    pub fn rules(&self, optimizer: &Optimizer) -> Rules {
        (self.rules)(optimizer)
    }

    /// Chooses a plan to train `graph` on `cluster` and says how it was simulated. Of `request`, the
    /// schedules and the number of finalists have no effect.
    ///
    /// # Errors
    /// If the method has no plan for these numbers, none of its plans fits in memory, or the request asks
    /// for what cannot be.
    pub fn choose(
        &self,
        graph: &Graph,
        cluster: &Cluster,
        request: &Request,
    ) -> Result<Choice, MethodError> {
        let asked = request.precision;
        let request = &*self.in_its_formats(request);
        let graph = &*request.graph_of(graph, cluster)?;
        let choice = self.choose_for(Task::new(self.name, graph, cluster, request))?;
        let Choice { plan, judgement, mut notes, .. } = choice;
        if request.precision != asked {
            notes.push(
                "everything is in fp32, whatever was asked for: passes run with weights that are moved along a \
                 velocity, which is trained in no other format"
                    .into(),
            );
        }
        let found = with_fastest_reductions(graph, cluster, plan, judgement, request)?;
        notes.extend(found.notes);
        Ok(Choice { plan: found.plan, judgement: found.judgement, notes, ..choice })
    }

    /// The same of a method that tries strategies one after another, where a trial is not simulated: `measure`
    /// says how long a step of a plan takes. The answer's step time is what that said. Collectives are as the
    /// request has them.
    ///
    /// # Errors
    /// As [`Method::choose`]; if the method tries none, or what was to be tried could not be.
    pub fn choose_by_measuring<'a>(
        &self,
        graph: &'a Graph,
        cluster: &'a Cluster,
        request: &'a Request,
        measure: &'a mut Measure<'a>,
    ) -> Result<Choice, MethodError> {
        let graph = request.graph_of(graph, cluster)?;
        let mut task = Task::new(self.name, &graph, cluster, request);
        task.measure = Some(RefCell::new(measure));
        self.choose_for(task)
    }

    /// The request in the formats that the method trains in: in fp32, if its corrections for late gradients move
    /// weights.
    fn in_its_formats<'a>(&self, request: &'a Request) -> Cow<'a, Request> {
        let moves_weights = self.rules(&request.optimizer).weights.corrections().move_weights();
        match moves_weights && request.precision != Precision::FP32 {
            true => Cow::Owned(Request { precision: Precision::FP32, ..request.clone() }),
            false => Cow::Borrowed(request),
        }
    }

    fn choose_for(&self, mut task: Task<'_>) -> Result<Choice, MethodError> {
        let request = task.request;
        request.validate()?;
        if request.post_validation && self.family == Family::AsynchronousPipeline {
            let rule = "an update is validated before any of the next step's gradients is there, which only \
                        methods with a flush keep apart";
            return Err(task.impossible("post_validation", true, rule));
        }
        let choice = (self.chooser)(&mut task)?;
        if task.takes_trials {
            return Ok(choice);
        }
        let rule = "it tries no strategies one after another, as autosync does";
        if request.trials != Trials::default() {
            return Err(task.impossible("trials", request.trials.described(), rule));
        }
        match task.measure {
            None => Ok(choice),
            Some(_) => Err(task.impossible("trials", "measured", rule)),
        }
    }
}
