import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import CoreMetrics
import Foundation
import SwiftProtobuf

// Events that the endpoint of a hook has refused, and that were put aside.

extension EventService {
    /// Events that one request names, or one page has, at most.
    private static let pageMax = 100
    /// Events of a page of a request that names all.
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

    /// Works on the events that a request names, or on all.
    ///
    /// - Returns: how many there were.
    /// - Throws: 21031 for an id that is none, 8002 for one of no event, 10005 if the client waits no longer.
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
        // Those that are refused again meanwhile have a later time.
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

    /// Lets events wait for their endpoint again: with their former ids, before younger ones.
    ///
    /// - Throws: 10007 if there is no room in the queue. Those before wait then.
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

    /// Drops all events of a hook that were put aside, which is deleted.
    func dropAll(_ name: String, of customer: String) async throws(ApusError) {
        while true {
            let page = try await records.failedEvents(of: name, of: customer, after: nil, limit: Self.stepCount)
            guard !page.isEmpty else { break }
            try await records.erase(page)
        }
        await noteCleared([], name, of: customer)
    }

    /// The queue counts the events that are put aside. If it is not reached, the count is right again when none is
    /// left.
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
    /// Whether it is counted with the alarms.
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
