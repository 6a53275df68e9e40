package import ApusContract
package import ApusCore
import ApusStorage
import SwiftProtobuf

// What clients find: days, times, channels, plans.
extension RecordingReader {
    /// The beginnings of the days of a zone that have recordings (IV-E3), in Unix seconds.
    ///
    /// - Throws: 21031 if there is no such zone; 10021.
    package func days(of channel: RecordedChannel, zone: Int32) async throws(ApusError) -> [Int64] {
        let (head, view) = (try await index.head(of: channel)?.body, try await view(of: channel))
        let start = max(head?.firstUs ?? 0, view.sinceMicroseconds)
        var scan = try RecordingDayScan(zone: zone, from: start, in: view)
        guard head != nil else { return [] }
        while let next = scan.next {
            let page = try await index.store.page(
                RecordScan(
                    RecordingRecords.hours.name, from: RecordingRecords.hourKey(channel, next),
                    below: channel.key.end, limit: RecordingDayScan.pageHours))
            var hours: [RecordingHour] = []
            for stored in page.records { hours.append(try RecordingRecords.hours.record(stored).body) }
            scan.add(hours, isLast: page.next == nil)
        }
        return scan.days
    }

    /// The time line of a range (IV-E4); of a longer one, that of its first day.
    ///
    /// - Parameter range: Unix seconds.
    package func times(
        of channel: RecordedChannel, _ range: Range<Int64>
    ) async throws(ApusError) -> [RecordingStretch] {
        let end = min(range.upperBound, range.lowerBound + RecordingTimeLine.secondsMax)
        let day = (range.lowerBound..<end).microseconds
        return RecordingTimeLine.stretches(try await segments(of: channel, day).found, in: day)
    }

    /// The plan of a channel with its status (IV-E2). A plan of another account is none.
    package func plan(of channel: RecordedChannel) async throws(ApusError) -> ClientRecordingPlan {
        let plan = try await index.plan(of: channel.device, channel.source)?.body
        let own = plan.flatMap { $0.account == channel.account.rawValue ? $0 : nil }
        let head = try await index.head(of: channel)?.body
        return RecordingPlanState(plan: own, head: head, now: now()).client(channel)
    }

    /// The channels that an account has recordings of.
    ///
    /// - Parameter token: the token of the page; empty for the first one.
    /// - Throws: 21031 if there is no such page.
    package func channels(
        of account: AccountID, after token: String
    ) async throws(ApusError) -> ClientListRecordedChannelsResponse {
        let all = OrderedKey(.text(account.rawValue))
        var from = all
        if !token.isEmpty {
            let parts = token.split(separator: ":", omittingEmptySubsequences: false)
            guard parts.count == 2, let source = UInt16(parts[1]) else {
                throw ApusError(.badParameter, "there is no such page")
            }
            let last = RecordedChannel(
                account: account, device: try DeviceID(checking: String(parts[0]), "the page's token"), source: source)
            from = last.key.end
        }
        let page = try await index.store.page(
            RecordScan(RecordingRecords.heads.name, from: from, below: all.end, limit: limits.channelPageMax))
        var reply = ClientListRecordedChannelsResponse()
        for stored in page.records {
            let head = try RecordingRecords.heads.record(stored).body
            let device = DeviceID(unchecked: head.device)
            let plan = try await index.plan(of: device, UInt16(truncatingIfNeeded: head.source))?.body
            let own = plan.flatMap { $0.account == head.account ? $0 : nil }
            let state = RecordingPlanState(plan: own, head: head, now: now())
            reply.channels.append(
                .with {
                    ($0.device, $0.source, $0.bytes) = (head.device, head.source, head.bytes)
                    ($0.start, $0.status) = (state.playbackStart, state.status)
                    $0.end = state.hasHistory ? -(-head.endUs).floored(by: 1_000_000) : 0
                })
        }
        if page.next != nil, let last = reply.channels.last {
            reply.nextPageToken = "\(last.device):\(last.source)"
        }
        return reply
    }

    // MARK: - Plans

    /// Records a channel from now on, or changes how (IV-E2).
    ///
    /// - Parameter account: the device's.
    /// - Throws: 21031 if a number is out of its range, 10030 if others change the plan all the time.
    package func record(
        _ channel: RecordedChannel, _ request: ClientSetRecordingPlanRequest
    ) async throws(ApusError) -> ClientRecordingPlan {
        let now = now()
        guard request.mode != .event else {
            throw ApusError(.badParameter, "recordings of events alone are not supported yet")
        }
        guard request.mode == .continuous, (1...3650).contains(request.days) else {
            throw ApusError(.badParameter, "a plan has a mode, and 1 to 3650 days")
        }
        guard request.end == 0 || request.end * 1000 > max(now, request.start * 1000) else {
            throw ApusError(.badParameter, "the end of a plan is behind its start and not over")
        }
        let plan = RecordingPlan.with {
            ($0.device, $0.source) = (channel.device.rawValue, UInt32(channel.source))
            ($0.account, $0.mode) = (channel.account.rawValue, .continuous)
            ($0.days, $0.bytesMax, $0.endsMs) = (request.days, request.bytesMax, request.end * 1000)
            $0.startsMs = max(now, request.start * 1000)
        }
        try await change(channel) { old in
            var new = plan
            let isSame = old?.account == plan.account
            if let old, isSame {
                if RecordingPlanState(plan: old, head: nil, now: now).isInUse, request.start * 1000 <= now {
                    new.startsMs = old.startsMs
                }
                new.sinceMs = min(old.sinceMs, new.startsMs)
            } else {
                new.sinceMs = new.startsMs
            }
            return new
        }
        return try await self.plan(of: channel)
    }

    /// Ends the plan of a channel now. Without a plan, nothing changes.
    package func stop(_ channel: RecordedChannel) async throws(ApusError) -> ClientRecordingPlan {
        let now = now()
        try await change(channel) { old in
            guard var new = old, new.account == channel.account.rawValue, new.endsMs == 0 || new.endsMs > now else {
                return nil
            }
            (new.startsMs, new.endsMs) = (min(new.startsMs, now), now)
            return new
        }
        return try await plan(of: channel)
    }

    /// - Parameter apply: the new plan, from the one of before; nil: nothing changes.
    private func change(
        _ channel: RecordedChannel, _ apply: (RecordingPlan?) -> RecordingPlan?
    ) async throws(ApusError) {
        let isChanged = try await change { () async throws(ApusError) -> (Bool, RecordStep?) in
            let old = try await index.plan(of: channel.device, channel.source)
            guard let new = apply(old?.body) else { return (false, nil) }
            let write = try RecordingRecords.plans.put(
                new, fence: old?.fence ?? .none, if: old.map { .version($0.version) } ?? .absent)
            return (true, RecordStep(write))
        }
        if isChanged { planChanged(channel.channel) }
    }
}
