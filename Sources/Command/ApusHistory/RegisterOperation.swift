package import ApusCore

/// One operation of a client on a register, from its invocation to its return: a line of a history.
///
/// A register is an entity that holds one value and allows compare-and-swap. Its value is
/// ``RegisterOperation/initialValue`` until the first write.
package struct RegisterOperation: Sendable, Hashable {
    /// The value of a register that nobody has written.
    package static let initialValue: UInt64 = 0

    /// What the client asked for.
    package enum Request: Sendable, Hashable {
        case read
        case write(UInt64)
        /// Writes `new` if the value is `expected`.
        case compareAndSwap(expected: UInt64, new: UInt64)
    }

    /// What the client knows of the result.
    package enum Outcome: Sendable, Hashable {
        /// A read returned this value.
        case value(UInt64)
        /// A write or a compare-and-swap was carried out and acknowledged.
        case ok
        /// A compare-and-swap found this value instead of the expected one, and changed nothing.
        case mismatch(UInt64)
        /// A time-out, or a lost answer. The operation may have taken effect or not. It may also take effect at any
        /// later time, or never.
        case unknown
        /// It certainly had no effect and never will.
        case failed
    }

    /// The client. A client may go on after an operation with an unknown outcome, which then still counts as running.
    package var client: Int
    /// The register. Each register is checked by itself.
    package var entity: String
    package var request: Request
    /// When the client sent the request, or earlier.
    package var invokedAt: MonotonicTime
    /// When the client had the answer, or later. Nil and without a meaning if the outcome is unknown.
    package var returnedAt: MonotonicTime?
    package var outcome: Outcome

    package init(
        client: Int, entity: String, request: Request, invokedAt: MonotonicTime, returnedAt: MonotonicTime? = nil,
        outcome: Outcome = .unknown
    ) {
        (self.client, self.entity, self.request) = (client, entity, request)
        (self.invokedAt, self.returnedAt, self.outcome) = (invokedAt, returnedAt, outcome)
    }

    /// True if a request of this kind can end so.
    package static func isPossible(_ outcome: Outcome, of request: Request) -> Bool {
        switch (request, outcome) {
        case (_, .unknown), (_, .failed): true
        case (.read, .value), (.write, .ok), (.compareAndSwap, .ok), (.compareAndSwap, .mismatch): true
        default: false
        }
    }
}

extension RegisterOperation: CustomStringConvertible {
    /// Client, request and outcome in one line, such as `client 3: write 17, ok`.
    package var description: String { "client \(client): \(request), \(outcome)" }
}

extension RegisterOperation.Request: CustomStringConvertible {
    package var description: String {
        switch self {
        case .read: "read"
        case .write(let value): "write \(value)"
        case .compareAndSwap(let expected, let new): "compare-and-swap \(expected) to \(new)"
        }
    }
}

extension RegisterOperation.Outcome: CustomStringConvertible {
    package var description: String {
        switch self {
        case .value(let value): "found \(value)"
        case .ok: "ok"
        case .mismatch(let value): "refused, found \(value)"
        case .unknown: "unknown"
        case .failed: "failed"
        }
    }
}
