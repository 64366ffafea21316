use super::*;
use phalanx_graph::Tensor;

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn load(text: &str, table: Csv) -> Result<Table> {
    table.load(file(text).path())
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

fn input(table: &Table) -> Vec<f32> {
    table.set.inputs[0].1.to_tensor().f32().unwrap().to_vec()
}

#[test]
fn tables_become_inputs_and_labels() {
    let data = load("a,b,kind\n1,2,dog\n3, 4.5 ,cat\n", Csv::new()).unwrap();
    assert_eq!(input(&data), [1.0, 2.0, 3.0, 4.5]);
    assert_eq!(data.set.targets[0].1.i32().unwrap(), [1, 0]);
    assert_eq!(data.classes, [["cat", "dog"]]);
    let data = load("7;1;2\n8;3;4\n", Csv::new().header(false).separator(b';').label("0")).unwrap();
    assert_eq!(data.set.targets[0].1.i32().unwrap(), [7, 8]);
    let data = load("a,b\n1,0.5\n2,1.5\n", Csv::new().label("b")).unwrap();
    assert_eq!(data.set.targets[0].1.f32().unwrap(), [0.5, 1.5]);
    assert_eq!(data.classes, [[] as [&str; 0]]);
}

#[test]
fn several_label_columns_and_weights() {
    let text = "a,w,up,down\n1,0.5,1,2.5\n2,2,3,4\n";
    let data = load(text, Csv::new().label("up").label("down").sample_weight("w")).unwrap();
    assert_eq!(input(&data), [1.0, 2.0]);
    let y = &data.set.targets[0].1;
    assert_eq!((y.dims(), y.f32().unwrap()), (&[2, 2][..], &[1.0, 2.5, 3.0, 4.0][..]));
    assert_eq!(data.set.sample_weight, Some(vec![0.5, 2.0]));
    let turned = load(text, Csv::new().label("down").label("up").sample_weight("w")).unwrap();
    assert_eq!(turned.set.targets[0].1.f32().unwrap(), [2.5, 1.0, 4.0, 3.0], "in the order given");
    let said = message(load(text, Csv::new().label("up").label("up")));
    assert!(
        said.contains("each column once as label or sample weight, received 'up' twice"),
        "{said}"
    );
    let said = message(load(text, Csv::new().sample_weight("down")));
    assert!(said.contains("the label named too"), "{said}");
}

#[test]
fn columns_go_to_the_inputs_and_outputs_that_they_are_named_after() {
    let text = "left_0,left_1,right,sum,sign\n1,2,3,0.5,up\n4,5,6,1.5,down\n";
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let csv = Csv::new().inputs(names(&["left", "right"])).outputs(names(&["sum", "sign"]));
    let data = load(text, csv.clone()).unwrap();
    let dims: Vec<&[usize]> = data.set.inputs.iter().map(|(_, x)| x.dims()).collect();
    assert_eq!(dims, [[2, 2], [2, 1]]);
    assert_eq!(data.set.targets[1].0, "sign");
    assert_eq!(data.set.targets[1].1.i32().unwrap(), [1, 0]);
    assert_eq!(data.classes[1], ["down", "up"]);
    let said = message(load("left,right,sum,sign,age\n1,2,3,4,5\n", csv.clone()));
    assert!(said.contains("(left, right, sum, sign), received a column 'age'"), "{said}");
    let one = Csv::new().inputs(names(&["left", "right"])).outputs(names(&["sum"]));
    for text in ["left,sum,right\n1,2,3\n", "left,price,right\n1,2,3\n"] {
        let data = load(text, one.clone()).unwrap();
        assert_eq!(data.set.targets, [("sum".to_string(), Tensor::new([1], vec![2]).unwrap())]);
    }
    let said = message(load("left,sum,sign\n1,2,3\n", csv));
    assert!(said.contains("a column for the input 'right', received none"), "{said}");
}

#[test]
fn words_become_numbers_by_choice_and_another_table_is_read_alike() {
    let text = "colour,size,price\nred,1,10.5\nblue,NA,20.5\n,4,30.5\n";
    let one_hot = Csv::new().categories(Categories::OneHot).missing(Missing::Mean);
    let data = load(text, one_hot.clone()).unwrap();
    // Missing, blue, red; size.
    let expected = [0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 2.5, 1.0, 0.0, 0.0, 4.0];
    assert_eq!(input(&data), expected);
    let stored = serde_json::to_string(&data.encoding).unwrap();
    let encoding: TableEncoding = serde_json::from_str(&stored).unwrap();
    let other = "size,price,colour\n,1.5,blue\n";
    let again = load(other, Csv::new().encoding(encoding.clone())).unwrap();
    assert_eq!(input(&again), [0.0, 1.0, 0.0, 2.5]);
    let unlabelled = file("colour,size\nred,7\n");
    let inputs = Csv::new().load_inputs(unlabelled.path(), &encoding).unwrap();
    assert_eq!(input(&inputs), [0.0, 0.0, 1.0, 7.0]);
    let said = message(load("colour,size,price\ngreen,1,2\n", Csv::new().encoding(encoding)));
    assert!(said.contains("blue, red") && said.contains("\"green\" in line 2, column A (colour)"));
    let index = Csv::new().categories(Categories::Index).missing(Missing::Drop);
    let data = load(text, index).unwrap();
    assert_eq!((input(&data), data.dropped), (vec![1.0, 1.0], 2));
    // One bad cell does not make a column categorical.
    let index = Csv::new().categories(Categories::Index);
    let said = message(load("a,b\n1,0\nx,1\n", index.clone()));
    assert!(
        said.contains("not both, received \"x\" in line 3, column A (a) among numbers"),
        "{said}"
    );
    let said = message(load("a,b\n1,0\n2,unknown\n", index));
    assert!(said.contains("\"unknown\" in line 3, column B (b) among numbers"), "{said}");
}

#[test]
fn bad_tables_are_named_with_their_line_and_column() {
    for (text, expected) in [
        ("", "at least one row"),
        ("a,b\n", "at least one row"),
        ("a\n1\n", "2 to 1000000 columns"),
        ("a,b\n1,2\n1\n", "2 columns, received 1 in line 3"),
        ("a,b\n1,2\nx,2\n", "received \"x\" in line 3, column A (a)"),
        ("a,b\n1,2\nx,2\n", "--categories one-hot or index"),
        ("a,b\ninf,2\n", "received \"inf\" in line 2, column A (a)"),
        ("a,b\nnan,2\n", "received \"nan\" in line 2, column A (a)"),
        ("a,b\n1,2\n,2\n", "received an empty cell in line 3, column A (a)"),
        ("a,b\n1,\n", "received an empty cell in line 2, column B (b)"),
        ("1,2\n3,4\n", "a first line with the columns' names, received a first line of numbers"),
    ] {
        let said = message(load(text, Csv::new()));
        assert!(said.contains(expected), "{said} should say {expected}");
    }
    let said = message(load("a,b\n1,2\n", Csv::new().label("c")));
    assert!(said.contains("a column 'c' for the label, received a, b"), "{said}");
    let said = message(load("a,b,a\n1,2,3\n", Csv::new()));
    assert!(said.contains("a name of its own for each column, received two columns 'a'"), "{said}");
    let long = message(load(&format!("a,b\n{},2\n", "x".repeat(50_000_000)), Csv::new()));
    assert!(long.len() < 400 && long.contains("(50000000 bytes)"), "{}", long.len());
}

#[test]
fn columns_have_a_spreadsheets_letters() {
    assert_eq!([0, 25, 26, 701, 702].map(letters), ["A", "Z", "AA", "ZZ", "AAA"]);
}
