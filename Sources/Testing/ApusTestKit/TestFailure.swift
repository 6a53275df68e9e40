/// What a test could not go on without, or found wrong, as a sentence. Tests and their helpers throw no other error of
/// their own.
package struct TestFailure: Error, CustomStringConvertible {
    /// The sentence.
    package let description: String

    /// A failure that says what is missing or wrong.
    package init(_ description: String) { self.description = description }
}
