//! A callback from closures.

use super::{Action, Callback, View};
use crate::error::Result;

type Hook = Box<dyn FnMut(&View<'_>) -> Result<Action> + Send>;

/// Declares [`LambdaCallback`]: for each hook a closure and the method that sets it.
macro_rules! hooks {
    ($($(#[$doc:meta])* $name:ident = $event:ident,)+) => {
        /// A callback from closures.
        ///
        /// ```
        /// use phalanx::callbacks::{Action, LambdaCallback};
        ///
        /// let callback = LambdaCallback::new().epoch_end(|view| {
        ///     println!("learning rate for epoch {} is {}", view.epoch + 1, view.learning_rate);
        ///     Ok(Action::Continue)
        /// });
        /// ```
        #[derive(Default)]
        pub struct LambdaCallback {
            $($name: Option<Hook>,)+
        }

        impl LambdaCallback {
            /// A callback without closures.
            pub fn new() -> LambdaCallback {
                LambdaCallback::default()
            }

            $($(#[$doc])*
            #[must_use]
            pub fn $name(
                mut self,
                hook: impl FnMut(&View<'_>) -> Result<Action> + Send + 'static,
            ) -> LambdaCallback {
                self.$name = Some(Box::new(hook));
                self
            })+
        }

        impl Callback for LambdaCallback {
            fn wants_batch_events(&self) -> bool {
                let of_batches = [
                    &self.batch_begin,
                    &self.batch_end,
                    &self.test_batch_begin,
                    &self.test_batch_end,
                    &self.predict_batch_begin,
                    &self.predict_batch_end,
                ];
                of_batches.iter().any(|hook| hook.is_some())
            }

            $(fn $event(&mut self, view: &View<'_>) -> Result<Action> {
                self.$name.as_mut().map_or(Ok(Action::Continue), |hook| hook(view))
            })+
        }
    };
}

hooks! {
    /// Called before the first epoch.
    train_begin = on_train_begin,
    /// Called after the last epoch.
    train_end = on_train_end,
    /// Called before an epoch.
    epoch_begin = on_epoch_begin,
    /// Called after an epoch and its validation.
    epoch_end = on_epoch_end,
    /// Called before a training batch.
    batch_begin = on_batch_begin,
    /// Called after a training batch.
    batch_end = on_batch_end,
    /// Called before an evaluation, also the validation of an epoch.
    test_begin = on_test_begin,
    /// Called after an evaluation.
    test_end = on_test_end,
    /// Called before a batch of an evaluation.
    test_batch_begin = on_test_batch_begin,
    /// Called after a batch of an evaluation.
    test_batch_end = on_test_batch_end,
    /// Called before a prediction.
    predict_begin = on_predict_begin,
    /// Called after a prediction.
    predict_end = on_predict_end,
    /// Called before a batch of a prediction.
    predict_batch_begin = on_predict_batch_begin,
    /// Called after a batch of a prediction.
    predict_batch_end = on_predict_batch_end,
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_view;
    use super::*;
    use crate::error::Error;

    #[test]
    fn closures_are_called_at_their_time() {
        let mut seen = 0;
        let mut callback = LambdaCallback::new()
            .epoch_end(move |view| {
                seen += 1;
                let late = view.log("loss") == Some(0.5) && seen == 2;
                Ok(if late { Action::Stop } else { Action::Continue })
            })
            .train_begin(|_| Err(Error::config("mine", "no")));
        with_view(0, ("loss", 0.5), 0.0, |view| {
            assert_eq!(callback.on_epoch_end(view).unwrap(), Action::Continue);
            assert_eq!(callback.on_epoch_end(view).unwrap(), Action::Stop);
            assert_eq!(callback.on_batch_end(view).unwrap(), Action::Continue);
            assert!(callback.on_train_begin(view).is_err());
        });
    }
}
