import ApusCore
package import Logging

/// Fits the limits that use descriptors to the limit of open files.
/// Pure. The caller passes the limit and the number of open descriptors.
package struct DescriptorPlan: Sendable, Equatable {
    /// A limit that does not fit, and its lowered value.
    package struct Lowered: Sendable, Equatable, CustomStringConvertible {
        package let key: String
        package let from: Int
        package let to: Int
        package var description: String { "\(key) \(from) to \(to)" }
    }

    /// The inputs of the plan, at the start of the process.
    package struct Surroundings: Sendable {
        package var limit: Int
        package var inUse: Int
        package var coreCount: Int
        /// The number of addresses at which the relay listens without TLS.
        package var relayAddressCount: Int

        package init(limit: Int, inUse: Int, coreCount: Int, relayAddressCount: Int) {
            self.limit = limit
            self.inUse = inUse
            self.coreCount = coreCount
            self.relayAddressCount = relayAddressCount
        }
    }

    /// The epoll, wake-up and timer descriptors of an event loop or of a plane.
    package static let perLoop = 3

    /// The limits that are lower than they were.
    package static func lowered(_ bounds: [(key: String, from: Int, to: Int)]) -> [Lowered] {
        bounds.filter { $0.to < $0.from }.map { Lowered(key: $0.key, from: $0.from, to: $0.to) }
    }

    /// Logs what was lowered.
    package static func say(_ lowered: [Lowered], limit: Int, _ log: Logger) {
        guard !lowered.isEmpty else { return }
        log.warning(
            "Limits were lowered to fit the limit of open files",
            metadata: [
                LogKey.limit: "\(limit)", LogKey.reason: "\(lowered.map(\.description).joined(separator: ", "))",
            ])
    }
}
