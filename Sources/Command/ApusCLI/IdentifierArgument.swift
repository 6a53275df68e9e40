import ApusCore
import ArgumentParser

extension IdentifierString {
    /// Parses an identifier from an argument.
    /// - Parameter name: the name of the argument or option, for the message.
    /// - Throws: a `ValidationError` with the limits.
    static func argument(_ text: String, _ name: String) throws -> Self {
        guard let value = Self(rawValue: text) else {
            throw ValidationError("\(name) must be \(limits), not '\(text)'")
        }
        return value
    }
}
