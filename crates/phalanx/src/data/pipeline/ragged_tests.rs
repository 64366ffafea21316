use super::*;
use crate::data::pipeline::tests::{message, shard};

/// An element of a sequence of `length` numbers and its label.
fn sequence((label, length): (usize, usize)) -> Element {
    let values: Vec<f32> = (0..length).map(|i| (10 * label + i + 1) as f32).collect();
    vec![Tensor::new([length], values).unwrap(), Tensor::new([], vec![label as i32]).unwrap()]
}

fn ragged(lengths: &[usize]) -> Pipeline {
    let elements = lengths.iter().copied().enumerate().map(sequence).collect();
    Pipeline::from_elements(elements).unwrap()
}

/// Dimensions and values of the first tensor, and the labels, of each batch.
fn batches(data: &Pipeline) -> Vec<(Vec<usize>, Vec<f32>, Vec<i32>)> {
    let batch = |element: Result<Element>| {
        let element = element.unwrap();
        let (x, y) = (&element[0], &element[1]);
        (x.dims().to_vec(), x.f32().unwrap().to_vec(), y.i32().unwrap().to_vec())
    };
    data.elements(3, 0).unwrap().map(batch).collect()
}

#[test]
fn batches_are_padded_to_their_longest_sample() {
    let data = ragged(&[2, 1, 3]).padded_batch(2).unwrap();
    assert_eq!(
        batches(&data),
        [
            (vec![2, 2], vec![1.0, 2.0, 11.0, 0.0], vec![0, 1]),
            (vec![1, 3], vec![21.0, 22.0, 23.0], vec![2]),
        ]
    );
    assert_eq!((data.cardinality(), data.len()), (Cardinality::Known(2), Some(3)));
    let options = PaddedBatch::new(2).padded_shapes([vec![Some(4)], vec![]]);
    let options = options.padding_values([-1.0, 0.0]).drop_remainder(true);
    let fixed = ragged(&[2, 1, 3]).padded_batch(options).unwrap();
    let row = vec![1.0, 2.0, -1.0, -1.0, 11.0, -1.0, -1.0, -1.0];
    assert_eq!(batches(&fixed), [(vec![2, 4], row, vec![0, 1])]);
    assert_eq!(fixed.len(), Some(2));
}

#[test]
fn all_axes_are_padded() {
    let matrix = |rows: usize, columns: usize| {
        let values: Vec<f32> = (1..=rows * columns).map(|v| v as f32).collect();
        vec![Tensor::new([rows, columns], values).unwrap()]
    };
    let data = Pipeline::from_elements(vec![matrix(2, 1), matrix(1, 2)]).unwrap();
    let batch = data.padded_batch(2).unwrap().elements(0, 0).unwrap().next().unwrap().unwrap();
    assert_eq!(batch[0].dims(), [2, 2, 2]);
    assert_eq!(batch[0].f32().unwrap(), [1.0, 0.0, 2.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
}

/// The order of `tf.data`: a batch when its bucket is full, the rest by bucket.
#[test]
fn buckets_group_similar_lengths() {
    let lengths = [2, 5, 3, 9, 1, 4, 2, 7];
    let buckets = || Buckets::new([3, 6], [2, 3, 1]);
    let data = ragged(&lengths).bucket_by_sequence_length(buckets()).unwrap();
    let found: Vec<_> = batches(&data).into_iter().map(|(dims, _, y)| (dims, y)).collect();
    assert_eq!(
        found,
        [
            (vec![1, 9], vec![3]),
            (vec![2, 2], vec![0, 4]),
            (vec![3, 5], vec![1, 2, 5]),
            (vec![1, 7], vec![7]),
            (vec![1, 2], vec![6]),
        ]
    );
    assert_eq!((data.cardinality(), data.len()), (Cardinality::Unknown, Some(8)));
    assert_eq!(data.batch_size(), 3);
    let dropped = ragged(&lengths).bucket_by_sequence_length(buckets().drop_remainder(true));
    assert_eq!(batches(&dropped.unwrap()).len(), 4);
    let bounded = Buckets::new([3, 6, 10], [2, 3, 1, 1]).pad_to_bucket_boundary(true);
    let bounded = ragged(&lengths).bucket_by_sequence_length(bounded).unwrap();
    let lengths: Vec<usize> = batches(&bounded).iter().map(|(dims, ..)| dims[1]).collect();
    assert_eq!(lengths, [9, 2, 5, 9, 2]);
}

type Rows = Vec<(usize, Vec<usize>, Vec<f32>, Vec<i32>)>;

/// The rows of a worker, or all of them.
fn rows(data: &Pipeline, epoch: u64, start: usize, shard: Option<&LocalShard>) -> Rows {
    let (mut batch, mut out) = (HostBatch::default(), vec![]);
    let mut pass = data.epoch_of(7, epoch, start, shard).unwrap();
    while pass.next(&mut batch).unwrap() {
        let own = match (&batch.local, shard) {
            (Some(local), _) => 0..local.len(),
            (None, Some(shard)) => shard.rows(batch.rows),
            (None, None) => 0..batch.rows,
        };
        let (x, y) = (&batch.inputs[0], &batch.targets[0]);
        let x_part = &x.f32().unwrap()[own.start * x.row_len()..own.end * x.row_len()];
        let y_part = &y.i32().unwrap()[own];
        out.push((batch.rows, x.dims()[1..].to_vec(), x_part.to_vec(), y_part.to_vec()));
    }
    out
}

/// Workers see the padded lengths of the whole batch, and a pass can start at any batch.
#[test]
fn workers_have_their_rows_of_the_padded_batches() {
    let lengths = [2, 5, 3, 9, 1, 4, 2, 7, 6, 3, 8];
    let source = || ragged(&lengths).shuffle(5).unwrap();
    let fixed = || PaddedBatch::new(4).padded_shapes([vec![Some(9)], vec![]]);
    let pipelines = [
        source().padded_batch(4).unwrap(),
        source().padded_batch(fixed()).unwrap(),
        source().padded_batch(3).unwrap().shuffle(2).unwrap().repeat(2),
        source().bucket_by_sequence_length(Buckets::new([4, 7], [3, 2, 2])).unwrap().prefetch(2),
        source().padded_batch(2).unwrap().cache(),
    ];
    for (number, data) in pipelines.iter().enumerate() {
        for epoch in 0..2 {
            let all = rows(data, epoch, 0, None);
            for start in 0..=all.len() {
                assert_eq!(rows(data, epoch, start, None)[..], all[start..], "{number}");
            }
            for workers in [2, 3] {
                for worker in 0..workers {
                    let shard = shard(worker, workers);
                    let own = |(rows, dims, x, y): &(usize, Vec<usize>, Vec<f32>, Vec<i32>)| {
                        let (own, width) = (shard.rows(*rows), dims[0]);
                        let x = x[own.start * width..own.end * width].to_vec();
                        (*rows, dims.clone(), x, y[own].to_vec())
                    };
                    let expected: Rows = all.iter().map(own).collect();
                    let what = format!("{number}: {worker} of {workers}");
                    assert_eq!(rows(data, epoch, 0, Some(&shard)), expected, "{what}");
                    assert_eq!(rows(data, epoch, 2, Some(&shard))[..], expected[2..], "{what}");
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_padded_is_named() {
    let run = |data: Result<Pipeline>| -> Result<()> {
        data?.elements(0, 0)?.try_for_each(|batch| batch.map(|_| ()))
    };
    let short = PaddedBatch::new(2).padded_shapes([vec![Some(2)], vec![]]);
    let said = message(run(ragged(&[2, 3]).padded_batch(short)));
    assert!(
        said.contains("element 1, tensor 0: expected f32 of at most [2], received f32 [3]"),
        "{said}"
    );
    let few = PaddedBatch::new(2).padded_shapes([[None]]);
    let said = message(run(ragged(&[2, 3]).padded_batch(few)));
    assert!(
        said.contains("tensor 1: expected a padded shape for each tensor, received 1"),
        "{said}"
    );
    let fraction = PaddedBatch::new(2).padding_values([0.0, 0.5]);
    let said = message(run(ragged(&[2, 3]).padded_batch(fraction)));
    assert!(said.contains("tensor 1: expected a i32 to pad with, received 0.5"), "{said}");
    assert!(message(run(ragged(&[2]).padded_batch(0))).contains("expected at least 1"));
    for (boundaries, sizes, expected) in [
        (vec![], vec![1], "ascending lengths"),
        (vec![0], vec![1, 1], "ascending lengths"),
        (vec![3, 3], vec![1, 1, 1], "ascending lengths"),
        (vec![3], vec![1], "2 sizes of at least 1"),
        (vec![3], vec![1, 0], "2 sizes of at least 1"),
    ] {
        let buckets = Buckets::new(boundaries, sizes);
        let said = message(run(ragged(&[2]).bucket_by_sequence_length(buckets)));
        assert!(said.contains(expected), "{said}");
    }
    let buckets = Buckets::new([3], [2, 2]).pad_to_bucket_boundary(true);
    let said = message(run(ragged(&[2, 4]).bucket_by_sequence_length(buckets)));
    assert!(said.contains("element 1: expected a length below 3, received 4"), "{said}");
    let uneven = vec![sequence((0, 2)), vec![Tensor::zeros([2])]];
    let said = message(Pipeline::from_elements(uneven));
    assert!(said.contains("element 1: expected 2 tensors, received 1"), "{said}");
    let scalar = Pipeline::from_elements(vec![vec![Tensor::new([], vec![1f32]).unwrap()]]).unwrap();
    let said = message(run(scalar.bucket_by_sequence_length(Buckets::new([3], [2, 2]))));
    assert!(said.contains("element 0") && said.contains("a tensor with an axis first"), "{said}");
}
