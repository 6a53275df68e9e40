package import ApusCore

/// The order in which a voice client is set up (VA-1): everything about the service and the device, then the database,
/// then the initialization. Each step of the first part may be left out where it has a default, and be repeated.
///
/// Pure.
package struct VoiceSetUpStateMachine: Sendable {
    /// A function of the chain, as it is spelled.
    package enum Step: String, Sendable, Hashable, CaseIterable {
        case authorizationURL = "setAuthorizationUrl"
        case service = "setIVSService"
        case local = "setLocal"
        case authority = "setCA"
        case log = "setLog"
        case deviceInfo = "setDeviceInfo"
        case database = "setDataBase"
        case initialization = "initialization"

        /// It has no default.
        var isRequired: Bool {
            switch self {
            case .authorizationURL, .service, .authority, .deviceInfo, .database: true
            case .local, .log, .initialization: false
            }
        }
    }

    private var done: Set<Step> = []

    package init() {}

    /// True if the chain was completed.
    package var isInitialized: Bool { done.contains(.initialization) }

    /// Checks that a step may follow, before it is taken.
    ///
    /// - Throws: 21031 with what is missing, or what came too early.
    package func check(_ step: Step) throws(ApusError) {
        guard !isInitialized else { throw Self.order("\(step.rawValue) comes after initialization") }
        switch step {
        case .authorizationURL, .service, .local, .authority, .log, .deviceInfo:
            guard !done.contains(.database) else { throw Self.order("\(step.rawValue) comes after setDataBase") }
        case .database:
            guard !done.contains(.database) else { throw Self.order("setDataBase comes twice") }
            try require(before: step)
        case .initialization: try require(before: step)
        }
    }

    /// The step was taken.
    ///
    /// - Precondition: ``check(_:)`` has not thrown.
    package mutating func take(_ step: Step) { done.insert(step) }

    private func require(before step: Step) throws(ApusError) {
        let missing = Step.allCases.filter { $0 != step && $0.isRequired && !done.contains($0) }
        guard missing.isEmpty else {
            throw Self.order("\(step.rawValue) needs \(missing.map(\.rawValue).joined(separator: ", ")) before it")
        }
    }

    private static func order(_ sentence: String) -> ApusError { ApusError(.badParameter, sentence) }
}
