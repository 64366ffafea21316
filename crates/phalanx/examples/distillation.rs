//! Distillation: a small student learns from the softened probabilities of a trained teacher and from the labels.
//!
//! `cargo run --release -p phalanx --example distillation`

pub mod arguments;

use phalanx::custom::Op;
use phalanx::prelude::*;
use phalanx::train_step::TrainStep;

/// Divides the logits of both, so that the student sees how the teacher ranks wrong answers.
const TEMPERATURE: f64 = 4.0;
/// The weight of the labels' loss; the teacher's has the rest.
const LABELS: f64 = 0.3;

fn main() -> Result<()> {
    arguments::read("")?;
    let (teacher, student) = run(&datasets::load("glyphs")?, 3)?;
    println!("accuracy: teacher {teacher:.4}, student {student:.4}");
    Ok(())
}

fn network(units: usize) -> Result<Model> {
    Sequential::new()
        .add(Input::new([28, 28, 1]))
        .add(Flatten::new())
        .add(Dense::new(units).activation("relu"))
        .add(Dense::new(10))
        .build()
}

/// Trains a teacher, then a student; returns the accuracy of both.
pub fn run(digits: &datasets::Split, epochs: usize) -> Result<(f64, f64)> {
    let from_logits = || SparseCategoricalCrossentropy::default().from_logits(true);
    let mut teacher = network(128)?;
    teacher.compile(Compile::new("adam").loss(from_logits()).metrics(["accuracy"]))?;
    teacher.fit(digits.train.clone(), Fit::new().epochs(epochs).verbose(0))?;
    let of_teacher = teacher.evaluate_with(digits.test.clone(), Inference::new())?;

    let student = network(16)?;
    let mut distillation = TrainStep::new("distillation")
        .input("images", Input::new([28, 28, 1]))
        .labels("labels")
        .model("teacher", &teacher)
        .model("student", &student)
        .optimizer("adam", Adam::default())
        .compile(move |cx| {
            let (images, labels) = (cx.input("images")?, cx.input("labels")?);
            let wanted = cx.call_inference("teacher", &[images])?;
            let found = cx.call("student", &[images])?;
            let g = cx.graph();
            let (soft_wanted, soft_found) =
                (g.scale(wanted, 1.0 / TEMPERATURE)?, g.scale(found, 1.0 / TEMPERATURE)?);
            let (soft_wanted, soft_found) =
                (g.push(Op::Softmax, &[soft_wanted])?, g.push(Op::Softmax, &[soft_found])?);
            let soft = cx.loss(&KLDivergence::default(), soft_wanted, soft_found)?;
            let hard = cx.loss(&from_logits(), labels, found)?;
            // The gradients of softened probabilities are smaller by the square of the temperature.
            let soft = cx.graph().scale(soft, (1.0 - LABELS) * TEMPERATURE * TEMPERATURE)?;
            let hard = cx.graph().scale(hard, LABELS)?;
            let loss = cx.graph().add(soft, hard)?;
            cx.track(SparseCategoricalAccuracy::default(), labels, found)?;
            cx.minimize("loss", loss, &["student"], "adam")
        })?;
    distillation.fit(digits.train.clone(), Fit::new().epochs(epochs).verbose(0))?;
    let of_student = distillation.evaluate(digits.test.clone(), Inference::new())?;
    let accuracy = |logs: &phalanx::model::Logs, name| logs.get(name).unwrap_or_default();
    Ok((accuracy(&of_teacher, "accuracy"), accuracy(&of_student, "sparse_categorical_accuracy")))
}
