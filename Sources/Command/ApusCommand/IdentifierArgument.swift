import ApusCore
import ArgumentParser

extension IdentifierString {
    /// Reads an identifier that was given as an argument.
    ///
    /// - Parameter name: of the argument or option, for the message.
    /// - Throws: a `ValidationError` with the limits.
    static func argument(_ text: String, _ name: String) throws -> Self {
        guard let value = Self(rawValue: text) else {
            throw ValidationError("\(name) must be \(limits), not '\(text)'")
        }
        return value
    }
}
