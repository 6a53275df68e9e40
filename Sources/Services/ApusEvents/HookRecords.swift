package import ApusCore
package import ApusStorage
import SwiftProtobuf

/// The hooks of integrators, and the events that wait for them.
///
/// Isolation: `Sendable`; may be called from any task.
package struct HookRecords: Sendable {
    static let hooks = RecordCollection<HookStored>(
        "hooks", layout: 1, key: { OrderedKey(.text($0.customer), .text($0.hook)) }, usesReserve: true)
    static let events = RecordCollection<HookStoredEvent>(
        "hook-events", layout: 1, key: { key(of: $0) })
    static let failed = RecordCollection<HookFailedEvent>("hook-failed", layout: 1, key: { key(of: $0.event) })
    package static let catalogue = RecordCatalogue([hooks, events, failed])

    private static func key(of event: HookStoredEvent) -> OrderedKey {
        OrderedKey(.text(event.customer), .text(event.hook), .signed(event.timeMs), .unsigned(event.number))
    }

    /// The most attempts of a change while other nodes change the same hook.
    private static let attemptsMax = 16
    private static let busy = ApusError(.overloaded, "the hook is being changed by too many others; try again")

    let store: any RecordStore

    package init(store: any RecordStore) { self.store = store }

    // MARK: Hooks

    /// Whether any customer has a hook.
    func hasHooks() async throws(ApusError) -> Bool { try await !store.page(Self.hooks, limit: 1).records.isEmpty }

    func hook(_ name: String, of customer: String) async throws(ApusError) -> HookStored? {
        try await store.record(Self.hooks, Self.key(name, customer))?.body
    }

    func hooks(of customer: String) async throws(ApusError) -> [HookStored] {
        try await store.page(Self.hooks, prefix: OrderedKey(.text(customer))).records.map(\.body)
    }

    /// Adds or changes a hook.
    ///
    /// - Throws: 10007 beyond `countMax`, or after too many concurrent changes; errors of `change`.
    package func put(
        _ name: String, of customer: String, countMax: Int,
        _ change: (inout HookStored) throws(ApusError) -> Void
    ) async throws(ApusError) -> HookStored {
        try await store.change(attempts: Self.attemptsMax, otherwise: Self.busy) {
            () async throws(ApusError) -> (HookStored, RecordStep?) in
            let found = try await store.record(Self.hooks, Self.key(name, customer))
            // Concurrent additions may exceed the limit.
            if found == nil, try await hooks(of: customer).count >= countMax {
                throw ApusError(.overloaded, "there are \(countMax) hooks already")
            }
            var body = found?.body ?? .with { ($0.customer, $0.hook) = (customer, name) }
            try change(&body)
            let write = try Self.hooks.put(
                body, fence: .none, if: found.map { .version($0.version) } ?? .absent)
            return (body, RecordStep(write))
        }.value
    }

    package func erase(_ name: String, of customer: String) async throws(ApusError) {
        try await store.commit(Self.hooks.erase(Self.key(name, customer), fence: .none))
    }

    private static func key(_ name: String, _ customer: String) -> OrderedKey {
        OrderedKey(.text(customer), .text(name))
    }

    // MARK: Events

    package func write(_ event: HookStoredEvent) async throws(ApusError) {
        try await store.commit(Self.events.put(event, fence: .none))
    }

    /// The oldest events that wait for a hook.
    package func events(of name: String, of customer: String, limit: Int) async throws(ApusError) -> [HookStoredEvent] {
        try await store.page(Self.events, prefix: Self.key(name, customer), limit: limit).records.map(\.body)
    }

    /// Removes events.
    ///
    /// - Throws: 10021 if the events cannot be removed. They are then delivered again.
    func erase(_ events: [HookStoredEvent]) async throws(ApusError) {
        let writes = events.map { Self.events.erase(Self.events.key(of: $0), fence: .none) }
        for outcome in await store.commit(writes.map { RecordStep($0) }) { _ = try outcome.get() }
    }

    // MARK: Events that were put aside

    /// Puts aside an event that its endpoint refused. The event no longer waits.
    ///
    /// The step requires that the hook exists: without the hook, no request could drop the event.
    ///
    /// - Returns: false if the hook does not exist. The event is then removed.
    /// - Throws: 10007 after too many concurrent changes of the hook.
    package func putAside(_ event: HookStoredEvent, reason: String, at now: Int64) async throws(ApusError) -> Bool {
        let failed = HookFailedEvent.with { ($0.event, $0.reason, $0.failedMs) = (event, reason, now) }
        let hook = Self.key(event.hook, event.customer)
        return try await store.change(attempts: Self.attemptsMax, otherwise: Self.busy) {
            () async throws(ApusError) -> (Bool, RecordStep?) in
            guard let found = try await store.record(Self.hooks, hook) else {
                try await erase([event])
                return (false, nil)
            }
            let step = RecordStep([
                Self.hooks.check(hook, fence: .none, if: .version(found.version)),
                Self.events.erase(Self.key(of: event), fence: .none), try Self.failed.put(failed, fence: .none),
            ])
            return (true, step)
        }.value
    }

    /// Moves an event that was put aside back into the queue.
    func putBack(_ failed: HookFailedEvent, at now: Int64) async throws(ApusError) {
        var event = failed.event
        event.waitsSinceMs = now
        try await store.commit(
            RecordStep([
                Self.failed.erase(Self.key(of: event), fence: .none), try Self.events.put(event, fence: .none),
            ]))
    }

    /// The oldest events that were put aside for a hook, after `last`.
    package func failedEvents(
        of name: String, of customer: String, after last: HookEventID?, limit: Int
    ) async throws(ApusError) -> [HookFailedEvent] {
        let token = last.map { last in
            let key = OrderedKey(.text(customer), .text(name), .signed(last.timeMs), .unsigned(last.number))
            return RecordToken(value: key, key: key)
        }
        return try await store.page(Self.failed, prefix: Self.key(name, customer), after: token, limit: limit)
            .records.map(\.body)
    }

    /// An event that was put aside; nil if there is no such event.
    func failedEvent(
        _ id: HookEventID, of name: String, of customer: String
    ) async throws(ApusError) -> HookFailedEvent? {
        try await store.record(
            Self.failed, OrderedKey(.text(customer), .text(name), .signed(id.timeMs), .unsigned(id.number)))?.body
    }

    /// Removes events that were put aside.
    func erase(_ failed: [HookFailedEvent]) async throws(ApusError) {
        let writes = failed.map { Self.failed.erase(Self.key(of: $0.event), fence: .none) }
        for outcome in await store.commit(writes.map { RecordStep($0) }) { _ = try outcome.get() }
    }

    /// The first hook with waiting events after `last`; nil at the end.
    func hookWithEvents(
        after last: (customer: String, hook: String)?
    ) async throws(ApusError) -> (customer: String, hook: String)? {
        let end = last.map { Self.key($0.hook, $0.customer).end }
        let token = end.map { RecordToken(value: $0, key: $0) }
        return try await store.page(Self.events, after: token, limit: 1).records.first
            .map { ($0.body.customer, $0.body.hook) }
    }
}
