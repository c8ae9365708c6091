"""Registration of types, formats and actions."""

from q2_types.distance_matrix import DistanceMatrix
from q2_types.feature_data import FeatureData, Sequence
from q2_types.feature_table import FeatureTable, Frequency
from q2_types.ordination import PCoAResults
from q2_types.sample_data import SampleData
from q2_types.tree import Phylogeny, Rooted

from . import __version__, actions, types
from .framework import plugin as interface
from .options import descriptions, parameters
from .types import (
    AAMClassifier,
    AAMEncoder,
    AAMModel,
    AAMRegressor,
    ClassifierPredictions,
    Importance,
    Probabilities,
    RegressorPredictions,
)

Categorical, MetadataColumn, Numeric = (
    interface.Categorical,
    interface.MetadataColumn,
    interface.Numeric,
)

plugin = interface.Plugin(
    name="aam",
    version=__version__,
    website="https://github.com/jbk708/aam",
    package="q2_aam",
    description="Transformers that read ASVs with their DNA and abundances: pretraining on masked "
    "nucleotides and UniFrac, prediction of sample metadata, embeddings, UniFrac.",
    short_description="Predict sample metadata from ASVs and their DNA.",
)

plugin.register_semantic_types(AAMModel, AAMEncoder, AAMRegressor, AAMClassifier)
plugin.register_formats(types.AAMModelDirectoryFormat, types.RunRecordFormat, types.AnyFileFormat)
plugin.register_semantic_type_to_format(
    AAMModel[AAMEncoder | AAMRegressor | AAMClassifier],
    artifact_format=types.AAMModelDirectoryFormat,
)
plugin.register_formats(*types.OWN_FORMATS)
for own, form in types.OWN_TYPES:
    plugin.register_semantic_types(own.fields[0])
    plugin.register_semantic_type_to_format(own, artifact_format=form)

TABLE = {"table": FeatureTable[Frequency]}
SEQUENCES = {"sequences": FeatureData[Sequence]}
TREE = {"tree": Phylogeny[Rooted]}
ENCODER = {"encoder": AAMModel[AAMEncoder]}
TEXTS = {
    "table": "Counts of reads, not rarefied.",
    "sequences": "DNA of the features; not needed if the feature ids are the sequences.",
    "tree": "Tree of the features with branch lengths.",
    "encoder": "Encoder of `pretrain` to start from.",
    "model": "Model of `train` or `pretrain`.",
    "metadata": "The column to predict; samples without a value are left out.",
    "groups": "Samples of a group (a subject, a study) are on one side of each split.",
}


def _texts(inputs):
    return {name: TEXTS[name] for name in inputs}


def _method(function, command, inputs, outputs, name, more=None):
    more = more or {}
    plugin.methods.register_function(
        function=function,
        inputs=inputs,
        parameters={**parameters(command), **more},
        outputs=outputs,
        input_descriptions=_texts(inputs),
        parameter_descriptions={**_texts(more.keys() & TEXTS.keys()), **descriptions(command)},
        name=name,
        description=f"{name}, with the command `aam {command}`.",
    )


_method(
    actions.pretrain,
    "pretrain",
    {**TABLE, **TREE, **SEQUENCES, **ENCODER},
    [("model", AAMModel[AAMEncoder])],
    "Pretrain an encoder without labels, on masked nucleotides and UniFrac distances",
)

classifier, trained = interface.TypeMap(
    {
        interface.Bool % interface.Choices(False): AAMModel[AAMRegressor],
        interface.Bool % interface.Choices(True): AAMModel[AAMClassifier],
    }
)
_method(
    actions.train,
    "train",
    {**TABLE, **SEQUENCES, **TREE, **ENCODER},
    [("model", trained)],
    "Train a model that predicts a metadata column",
    {
        "metadata": MetadataColumn[Numeric | Categorical],
        "groups": MetadataColumn[Categorical],
        "classifier": classifier,
    },
)

model, predictions = interface.TypeMap(
    {
        AAMModel[AAMRegressor]: SampleData[RegressorPredictions],
        AAMModel[AAMClassifier]: SampleData[ClassifierPredictions],
    }
)
_method(
    actions.predict,
    "predict",
    {**TABLE, "model": model, **SEQUENCES},
    [("predictions", predictions)],
    "Predict a metadata column for the samples of a table",
)
_method(
    actions.predict_probabilities,
    "predict",
    {**TABLE, "model": AAMModel[AAMClassifier], **SEQUENCES},
    [("probabilities", SampleData[Probabilities])],
    "Predict the probability of each class for the samples of a table",
)
_method(
    actions.importance,
    "importance",
    {**TABLE, "model": AAMModel[AAMRegressor | AAMClassifier], **SEQUENCES},
    [("importance", FeatureData[Importance])],
    "Rank the features of a table by how much the predictions of a model depend on them",
)
_method(
    actions.embed,
    "embed",
    {**TABLE, "model": AAMModel[AAMEncoder | AAMRegressor | AAMClassifier], **SEQUENCES},
    [("distance_matrix", DistanceMatrix), ("pcoa", PCoAResults)],
    "Euclidean distances between the embeddings of samples, and their PCoA",
)
_method(
    actions.unifrac,
    "unifrac",
    {**TABLE, **TREE},
    [("distance_matrix", DistanceMatrix)],
    "UniFrac distances between samples",
)
plugin.visualizers.register_function(
    function=actions.evaluate,
    inputs={"predictions": SampleData[RegressorPredictions | ClassifierPredictions]},
    parameters={"metadata": MetadataColumn[Numeric | Categorical]},
    parameter_descriptions={"metadata": "The column that was predicted."},
    name="Metrics of predictions against a metadata column",
    description="R2, error or accuracy of predictions, with the command `aam evaluate`.",
)
plugin.visualizers.register_function(
    function=actions.report,
    inputs={"model": AAMModel[AAMEncoder | AAMRegressor | AAMClassifier]},
    parameters={"metadata": interface.Metadata},
    parameter_descriptions={"metadata": "Colours of the embedding."},
    name="Report of a model",
    description="Learning curves, predictions of held-out samples, embedding and provenance, with "
    "the command `aam report`.",
)
