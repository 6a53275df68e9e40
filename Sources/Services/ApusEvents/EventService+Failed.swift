import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import CoreMetrics
import Foundation
import SwiftProtobuf

// Events that the endpoint of a hook refused and that were put aside.

extension EventService {
    /// The most events that one request names, or that one page has.
    private static let pageMax = 100
    /// The page size of a request that applies to all events.
    private static let stepCount = 64

    func addFailedEventRequests(to api: inout ClientAPI) {
        api.on(ClientListFailedEventsRequest.self) { [self] request, call throws(ApusError) in
            let (name, customer) = try await hook(request.hook, request.customer, call)
            let last = try request.pageToken.isEmpty ? nil : HookEventID(checking: request.pageToken)
            let limit = Int(min(request.pageSize == 0 ? 20 : request.pageSize, UInt32(Self.pageMax)))
            let found = try await records.failedEvents(of: name, of: customer, after: last, limit: limit)
            return .with {
                $0.events = found.map { ClientFailedEvent($0) }
                if found.count == limit { $0.nextPageToken = found.last?.event.id.description ?? "" }
            }
        }
        api.on(ClientRetryFailedEventsRequest.self, orderKey: { $0.customer }) {
            [self] request, call throws(ApusError) in
            let (name, customer) = try await hook(request.hook, request.customer, call)
            let count = try await forEach(request.ids, name, customer, call) { failed throws(ApusError) in
                try await retry(failed)
            }
            return .with { $0.count = count }
        }
        api.on(ClientDropFailedEventsRequest.self, orderKey: { $0.customer }) {
            [self] request, call throws(ApusError) in
            let (name, customer) = try await hook(request.hook, request.customer, call)
            let count = try await forEach(request.ids, name, customer, call) { failed throws(ApusError) in
                try await drop(failed, name, of: customer)
            }
            return .with { $0.count = count }
        }
    }

    /// - Throws: as ``customer(_:_:)``; 8002 if there is no such hook.
    private func hook(
        _ hook: String, _ customer: String, _ call: ClientCall
    ) async throws(ApusError) -> (name: String, customer: String) {
        let customer = try await self.customer(customer, call)
        let name = try Self.name(hook)
        guard try await records.hook(name, of: customer) != nil else {
            throw ApusError(.targetUnknown, "no such hook")
        }
        return (name, customer)
    }

    /// Applies `work` to the events that a request names, or to all if it names none.
    ///
    /// - Returns: the number of events.
    /// - Throws: 21031 if an id is malformed or there are too many ids, 8002 if an id names no event, 10005 after the
    ///   client's deadline.
    private func forEach(
        _ ids: [String], _ name: String, _ customer: String, _ call: ClientCall,
        _ work: ([HookFailedEvent]) async throws(ApusError) -> Void
    ) async throws(ApusError) -> UInt64 {
        guard ids.isEmpty else {
            guard ids.count <= Self.pageMax else {
                throw ApusError(.badParameter, "a request names at most \(Self.pageMax) events")
            }
            var named: [HookFailedEvent] = []
            for id in ids {
                let found = try await records.failedEvent(HookEventID(checking: id), of: name, of: customer)
                guard let found else { throw ApusError(.targetUnknown, "no such event: \(id)") }
                named.append(found)
            }
            try await work(named)
            return UInt64(named.count)
        }
        // Events that are refused again while this runs have a later time, and are left out.
        let (start, first) = (now, HookEventID(timeMs: .min, number: 0))
        var (last, count) = (first, UInt64(0))
        while true {
            _ = try call.timeLeft()
            let page = try await records.failedEvents(of: name, of: customer, after: last, limit: Self.stepCount)
            guard let end = page.last else { break }
            let old = page.filter { $0.failedMs <= start }
            try await work(old)
            (last, count) = (end.event.id, count + UInt64(old.count))
        }
        await noteCleared([], name, of: customer)
        return count
    }

    /// Moves events back into the queue, with their previous ids and before younger events.
    ///
    /// - Throws: 10007 if the queue has no room. The events before that one are in the queue.
    private func retry(_ failed: [HookFailedEvent]) async throws(ApusError) {
        for failed in failed {
            let event = failed.event
            try await records.putBack(failed, at: now)
            let reply = try await queue(event.hook, of: event.customer).ask(
                HookWritten.with {
                    ($0.customer, $0.hook, $0.share) = (event.customer, event.hook, event.share)
                    ($0.byteCount, $0.alarm) = (UInt32(clamping: event.json.count), event.isAlarm)
                })
            guard !reply.dropped else {
                _ = try await records.putAside(event, reason: failed.reason, at: failed.failedMs)
                throw ApusError(.overloaded, "too many events wait for the hook")
            }
            await noteCleared([failed], event.hook, of: event.customer)
        }
    }

    private func drop(_ failed: [HookFailedEvent], _ name: String, of customer: String) async throws(ApusError) {
        try await records.erase(failed)
        dropped.increment(by: failed.count)
        await noteCleared(failed, name, of: customer)
    }

    /// Drops all events that were put aside for a hook that is being deleted.
    func dropAll(_ name: String, of customer: String) async throws(ApusError) {
        while true {
            let page = try await records.failedEvents(of: name, of: customer, after: nil, limit: Self.stepCount)
            guard !page.isEmpty else { break }
            try await records.erase(page)
        }
        await noteCleared([], name, of: customer)
    }

    /// Updates the queue's count of events that are put aside. If the queue cannot be reached, the count stays wrong
    /// until no such event is left.
    func noteCleared(_ failed: [HookFailedEvent], _ name: String, of customer: String) async {
        let rest = try? await records.failedEvents(of: name, of: customer, after: nil, limit: 1)
        let isEmpty = rest?.isEmpty ?? false
        guard isEmpty || !failed.isEmpty else { return }
        _ = try? await queue(name, of: customer).ask(
            HookCleared.with {
                ($0.shares, $0.all) = ([HookShare](failed.map(\.event)), isEmpty)
            }, call: .once())
    }
}

extension HookStoredEvent {
    /// Whether the event counts as an alarm.
    fileprivate var isAlarm: Bool { share > UInt32(HookQueue.sharesMax) }
}

extension ClientFailedEvent {
    fileprivate init(_ failed: HookFailedEvent) {
        self.init()
        let event = failed.event
        let content = (try? JSONSerialization.jsonObject(with: event.json)) as? [String: Any] ?? [:]
        func text(_ name: String) -> String { content[name] as? String ?? "" }
        (id, topic, name) = (event.id.description, text("topic"), text("name"))
        (device, account, timeMs) = (text("device"), text("account"), event.timeMs)
        (failedMs, reason) = (failed.failedMs, failed.reason)
        json = String(decoding: event.json, as: UTF8.self)
    }
}
