public import ApusClient
import ApusContract
public import ApusCore
public import Logging
import Synchronization

/// The settings of a device, `ProWritable` of its model, kept in step with the cluster (IV-D4, docs/things.md).
///
/// A setting that an app writes is applied once the device is connected, also if it was written while the device was
/// away, and then reported: the pending settings are read after each connection, and after each event. Settings are
/// applied one after the other. Of several writes that wait, the last is applied.
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

    private struct State: Sendable {
        /// The values that the device has.
        var values: [String: String] = [:]
        /// Settings that were changed without the cluster, which does not know their values yet.
        var unreported: Set<String> = []
    }
    private let state = Mutex(State())
    /// Held while a value is applied.
    private let turn = AsyncLock()
    private let unreported: AsyncStream<Void>
    private let unreportedFeed: AsyncStream<Void>.Continuation

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
        (unreported, unreportedFeed) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1))
    }

    /// Changes a setting at the device, such as by a button or over the local network. The cluster learns the value
    /// once the device is connected. A write of an app that the device has not received yet replaces it then.
    ///
    /// - Returns: the value that the device has now, in JSON.
    /// - Throws: 20101 if the device has no such setting.
    public func write(_ name: String, json: String) async throws(ApusError) -> String {
        guard initial.contains(where: { $0.name == name }) || state.withLock({ $0.values[name] != nil }) else {
            throw ApusError(.pathIllegal, "the device has no such setting")
        }
        let value = await applied(name, json) { $0.unreported.insert(name) }
        unreportedFeed.yield()
        return value ?? json
    }

    /// - Parameter unlessChanged: a value that the cluster does not know yet is not replaced, and nil is returned.
    private func applied(
        _ name: String, _ json: String, unlessChanged: Bool = false, _ change: @Sendable (inout State) -> Void
    ) async -> String? {
        await turn.acquire()
        defer { turn.release() }
        guard !unlessChanged || state.withLock({ !$0.unreported.contains(name) }) else { return nil }
        let value = await apply(name, json)
        state.withLock {
            $0.values[name] = value
            change(&$0)
        }
        return value
    }

    /// Works until the task is cancelled.
    ///
    /// - Throws: what lasts: 20101 and 20102 if an initial setting cannot be, or the product has no valid name; 12004
    ///   if the session is not the device's.
    public func run() async throws(ApusError) {
        // Both are subscribed to before the pending settings are read, so none is missed in between.
        let (changes, connections) = (session.propertyChanges(of: device), session.newConnections())
        if let product { try await report("ProReadonly._product", #"{"stVal":"\#(product)"}"#, received: nil) }
        for (name, json) in initial { try await begin(name, json) }
        try await applyPending()
        let (pending, pendingFeed) = AsyncThrowingStream<Void, any Error>.makeStream(
            bufferingPolicy: .bufferingNewest(1))
        let failure = await withDiscardingTaskGroup { group -> ApusError? in
            group.addTask { await self.reportChanges() }
            // A setting that was written while the device was away may have no event that reaches it.
            group.addTask { for await _ in connections { pendingFeed.yield() } }
            group.addTask {
                do {
                    for try await event in changes where event.missed || event.message.pending { pendingFeed.yield() }
                    pendingFeed.finish()
                } catch {
                    pendingFeed.finish(throwing: error)
                }
            }
            defer { group.cancelAll() }
            do {
                // The pending settings rather than those of an event: a later write may have replaced it.
                for try await _ in pending { try await applyPending() }
                return nil
            } catch {
                return error as? ApusError ?? ApusError(.internalFailure, "\(error)")
            }
        }
        if let failure { throw failure }
    }

    /// Reports what was changed without the cluster.
    private func reportChanges() async {
        for await _ in unreported {
            while let (name, value) = state.withLock({ state in
                state.unreported.first.flatMap { name in state.values[name].map { (name, $0) } }
            }) {
                // The session has ended: a later start reports it.
                guard await reportAllowed("ProWritable.\(name).setVal", value, received: nil) else { return }
                noteReport(of: name, value)
            }
        }
    }

    private func begin(_ name: String, _ json: String) async throws(ApusError) {
        let path = "ProWritable.\(name).setVal"
        let found: ClientSession.Property
        do throws(ApusError) {
            found = try await session.untilAnswered { [session, device] () throws(ApusError) in
                try await session.readProperty(of: device, path: path)
            }
        } catch {
            guard error.code == .propertyUnknown else { throw error }
            let value = state.withLock { state in
                let value = state.values[name] ?? json
                state.values[name] = value
                return value
            }
            try await report(path, value, received: nil)
            return noteReport(of: name, value)
        }
        try await apply(found, unlessChanged: true)
    }

    private func applyPending() async throws(ApusError) {
        let pending = try await session.untilAnswered { [session] () throws(ApusError) in
            try await session.pendingProperties()
        }
        for setting in pending { try await apply(setting) }
    }

    /// - Parameters:
    ///   - setting: a value at a path such as `ProWritable.volume.setVal`.
    ///   - unlessChanged: a value that was changed at the device meanwhile is not replaced.
    private func apply(
        _ setting: ClientSession.Property, unlessChanged: Bool = false
    ) async throws(ApusError) {
        let name = String(setting.path.split(separator: ".")[1])
        let value = await applied(name, setting.json, unlessChanged: unlessChanged) { $0.unreported.remove(name) }
        guard let value else {
            unreportedFeed.yield()
            return
        }
        log.info("A setting was applied", metadata: ["apus.setting": "\(name)"])
        defer { noteReport(of: name, value) }
        do throws(ApusError) {
            try await report(setting.path, value, received: setting.version)
        } catch {
            // The schema of the product has changed since the value was written: it remains until the next write.
            guard error.code == .pathIllegal || error.code == .jsonInvalid else { throw error }
            log.warning("The value of a setting is not allowed", metadata: Logger.facts(of: error))
        }
    }

    /// A report that was overtaken by another one may have replaced it in the model: the newest value is reported
    /// again.
    private func noteReport(of name: String, _ value: String) {
        let isOld = state.withLock { state in
            guard state.values[name]?.isExactly(value) == true else {
                state.unreported.insert(name)
                return true
            }
            state.unreported.remove(name)
            return false
        }
        if isOld { unreportedFeed.yield() }
    }

    /// - Returns: false if nothing can be reported any more. A value that the cluster refuses remains at the device.
    private func reportAllowed(_ path: String, _ json: String, received: UInt64?) async -> Bool {
        do throws(ApusError) {
            try await report(path, json, received: received)
            return true
        } catch {
            log.warning("The value of a setting was not reported", metadata: Logger.facts(of: error))
            return error.code != .cancelled && !error.code.ends(.session)
        }
    }

    private func report(_ path: String, _ json: String, received: UInt64?) async throws(ApusError) {
        try await session.untilAnswered { [session] () throws(ApusError) in
            try await session.reportProperty(path: path, json: json, receivedVersion: received)
        }
    }
}
