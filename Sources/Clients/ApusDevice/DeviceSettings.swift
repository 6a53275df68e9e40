public import ApusClient
import ApusContract
public import ApusCore
public import Logging

/// The settings of a device, `ProWritable` of its model, kept in step with the cluster (IV-D4, docs/things.md).
///
/// A setting that an app writes is applied once the device is connected, also if it was written while the device was
/// away, and then reported. Settings are applied one after the other. Of several writes that wait, the last is applied.
///
/// Isolation: `Sendable`; ``run()`` is called once.
public final class DeviceSettings: Sendable {
    /// Applies a value, in JSON, and returns the value that the device then has.
    public typealias Apply = @Sendable (_ name: String, _ json: String) async -> String

    private let session: ClientSession
    private let device: DeviceID
    private let product: String?
    private let initial: [(name: String, json: String)]
    private let apply: Apply
    private let log: Logger

    /// - Parameters:
    ///   - session: the device's own.
    ///   - product: the type of device, which is reported before everything else. If the integrator has registered it,
    ///     its schema says which values the model may have (docs/things.md). Nil: nothing is reported.
    ///   - initial: the settings with their first values, in JSON. A setting that the model has already is applied with
    ///     the model's value, so a device needs no memory of its own.
    public init(
        session: ClientSession, device: DeviceID, product: String? = nil, initial: [(name: String, json: String)],
        log: Logger, apply: @escaping Apply
    ) {
        (self.session, self.device, self.product, self.initial) = (session, device, product, initial)
        (self.log, self.apply) = (log, apply)
    }

    /// Works until the task is cancelled.
    ///
    /// - Throws: what lasts: 20101 and 20102 if an initial setting cannot be, or the product has no valid name; 12004
    ///   if the session is not the device's.
    public func run() async throws(ApusError) {
        // Changes are heard from before the pending ones are read, so none is missed in between.
        let changes = session.propertyChanges(of: device)
        if let product { try await report("ProReadonly._product", #"{"stVal":"\#(product)"}"#, received: nil) }
        for (name, json) in initial { try await begin(name, json) }
        try await applyPending()
        do {
            for try await event in changes {
                guard event.missed || event.message.pending else { continue }
                // The pending settings rather than the event's: a later write may have replaced it.
                try await applyPending()
            }
        } catch {
            guard let error = error as? ApusError else { throw ApusError(.internalFailure, "\(error)") }
            throw error
        }
    }

    private func begin(_ name: String, _ json: String) async throws(ApusError) {
        let path = "ProWritable.\(name).setVal"
        do throws(ApusError) {
            try await apply(
                session.untilAnswered { [session, device] () throws(ApusError) in
                    try await session.readProperty(of: device, path: path)
                })
        } catch {
            guard error.code == .propertyUnknown else { throw error }
            try await report(path, json, received: nil)
        }
    }

    private func applyPending() async throws(ApusError) {
        let pending = try await session.untilAnswered { [session] () throws(ApusError) in
            try await session.pendingProperties()
        }
        for setting in pending { try await apply(setting) }
    }

    /// - Parameter setting: a value at a path such as `ProWritable.volume.setVal`.
    private func apply(_ setting: ClientSession.Property) async throws(ApusError) {
        let name = setting.path.split(separator: ".")[1]
        let value = await apply(String(name), setting.json)
        log.info("A setting was applied", metadata: ["apus.setting": "\(name)"])
        do throws(ApusError) {
            try await report(setting.path, value, received: setting.version)
        } catch {
            // The schema of the product has changed since the value was written: it remains until the next write.
            guard error.code == .pathIllegal || error.code == .jsonInvalid else { throw error }
            log.warning("The value of a setting is not allowed", metadata: Logger.facts(of: error))
        }
    }

    private func report(_ path: String, _ json: String, received: UInt64?) async throws(ApusError) {
        try await session.untilAnswered { [session] () throws(ApusError) in
            try await session.reportProperty(path: path, json: json, receivedVersion: received)
        }
    }
}
