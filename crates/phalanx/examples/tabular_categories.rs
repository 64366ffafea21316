//! A table with numbers, categories and strings: each column is encoded in its way, then a small network.
//!
//! The table is generated: who has a subscription depends on age, income, city and on how city and job combine.
//!
//! `cargo run --release -p phalanx --example tabular_categories`

pub mod arguments;

use phalanx::Stream;
use phalanx::feature_space::{Feature, FeatureOutput, FeatureSpace};
use phalanx::prelude::*;

fn main() -> Result<()> {
    arguments::read("")?;
    let directory = std::env::temp_dir();
    println!("accuracy {:.3}", run(4000, 10, &directory.join("subscriptions.keras"))?);
    Ok(())
}

/// Trains, saves the model and returns the accuracy of the saved one on rows that it has not seen.
pub fn run(rows: usize, epochs: usize, path: &std::path::Path) -> Result<f64> {
    let (table, labels) = table(rows);
    let space = FeatureSpace::new()
        .feature("age", Feature::float_normalized())
        .feature("income", Feature::float_discretized(8))
        .feature("city", Feature::string_categorical())
        .feature("job", Feature::string_hashed(16))
        .feature("children", Feature::integer_categorical())
        .cross_with(["city", "children"], 16, FeatureOutput::OneHot)
        .adapt(table.clone())?;

    let features = &space.encoded_features()[0].1;
    let x = Dense::new(32).activation("relu").apply(features);
    let outputs = Dense::new(1).activation("sigmoid").apply(&x);
    let mut model = Model::with_name("subscriptions", space.inputs(), &outputs)?;
    model
        .compile(Compile::new(Adam::new(5e-3)).loss("binary_crossentropy").metrics(["accuracy"]))?;
    println!("{}", model.summary());

    let columns: Vec<Samples> = table.into_iter().map(|(_, column)| column).collect();
    let (train, test) = Arrays::new(columns, labels)?.split(0.25)?;
    model.fit(train, Fit::new().epochs(epochs).batch_size(64).verbose(2))?;
    // The file holds vocabularies, bins and statistics: it takes the table as it is.
    model.save(path)?;
    let mut saved = load_model(path)?;
    let logs = saved.evaluate_with(test, Inference::new())?;
    Ok(logs.get("accuracy").unwrap_or_default())
}

type Table = Vec<(&'static str, Samples)>;

/// The columns by name, and who has a subscription.
fn table(rows: usize) -> (Table, Tensor) {
    let cities = ["Rome", "Oslo", "Zürich", "Kyoto", "Lima"];
    let jobs = ["nurse", "teacher", "farmer", "clerk", "driver", "cook"];
    let mut random = Stream::new(11, 0, 1, 0);
    let mut next = || random.unit() as f32;
    let (mut ages, mut incomes, mut children) = (vec![], vec![], vec![]);
    let (mut city, mut job, mut labels) = (vec![], vec![], vec![]);
    for _ in 0..rows {
        let (age, income) = (20.0 + 60.0 * next(), 1000.0 + 9000.0 * next() * next());
        let (c, j, n) =
            ((next() * 5.0) as usize % 5, (next() * 6.0) as usize % 6, (next() * 4.0) as i32);
        let likes = [0.8, -0.6, 0.3, -0.2, 0.1][c];
        let families = if (c + n as usize).is_multiple_of(2) { 0.8 } else { -0.8 };
        let score = likes + families + (age - 50.0) / 40.0 + f32::from(income > 4000.0) - 0.3;
        ages.push(age);
        incomes.push(income);
        children.push(n);
        city.push(cities[c]);
        job.push(jobs[j]);
        labels.push(f32::from(score + 0.2 * (next() - 0.5) > 0.0));
    }
    let floats = |values: Vec<f32>| Tensor::new([rows, 1], values).expect("a number for every row");
    let children = Tensor::new([rows, 1], children).expect("a number for every row");
    let table: Table = vec![
        ("age", floats(ages).into()),
        ("income", floats(incomes).into()),
        ("city", Text::from(city).into()),
        ("job", Text::from(job).into()),
        ("children", children.into()),
    ];
    (table, floats(labels))
}
