package import ApusCore
package import ApusObjectStore
package import ApusStorage

/// Reads and changes the index of the recordings (``RecordingRecords``).
///
/// Isolation: `Sendable`; may be called from any task.
package struct RecordingIndex: Sendable {
    /// The most hours that one call of ``hours(of:_:)`` returns: a day and the hours at its ends.
    package static let hoursMax = 26
    /// Microseconds of an hour.
    package static let hourMicroseconds: Int64 = 3_600_000_000

    package let store: any RecordStore

    package init(_ store: any RecordStore) { self.store = store }

    /// The hour of UTC of a time in microseconds, as in the keys.
    package static func hour(of microseconds: Int64) -> Int64 {
        let (quotient, remainder) = microseconds.quotientAndRemainder(dividingBy: hourMicroseconds)
        return remainder < 0 ? quotient - 1 : quotient
    }

    /// The plan of a device's channel, whichever account made it.
    package func plan(of device: DeviceID, _ source: UInt16) async throws(ApusError) -> Record<RecordingPlan>? {
        try await store.record(
            RecordingRecords.plans, RecordingRecords.planKey(device.rawValue, UInt32(source)))
    }

    /// The plans of channels of devices.
    func plans(of channels: Set<ChannelID>) async throws(ApusError) -> [ChannelID: RecordingPlan] {
        let all = channels.sorted()
        var found: [ChannelID: RecordingPlan] = [:]
        for start in stride(from: 0, to: all.count, by: RecordLimits.pageCountMax) {
            let part = all[start..<min(start + RecordLimits.pageCountMax, all.count)]
            let keys = part.map { RecordingRecords.planKey($0.owner.wireName, UInt32($0.source)) }
            for (channel, record) in zip(part, try await store.records(RecordingRecords.plans, keys)) {
                found[channel] = record?.body
            }
        }
        return found
    }

    /// True if a channel has a plan, or had one.
    func hasPlans() async throws(ApusError) -> Bool {
        try await !store.page(RecordingRecords.plans, limit: 1).records.isEmpty
    }

    package func head(of channel: RecordedChannel) async throws(ApusError) -> Record<RecordingHead>? {
        try await store.record(RecordingRecords.heads, channel.key)
    }

    /// The hours of a range that have recordings, in their order: at most ``hoursMax`` from the first one on.
    package func hours(
        of channel: RecordedChannel, _ range: ClosedRange<Int64>
    ) async throws(ApusError) -> [Record<RecordingHour>] {
        let first = RecordingRecords.hourKey(channel, range.lowerBound)
        let page = try await store.page(
            RecordScan(
                RecordingRecords.hours.name, from: first,
                below: RecordingRecords.hourKey(channel, range.upperBound + 1), limit: Self.hoursMax))
        var found: [Record<RecordingHour>] = []
        for stored in page.records { found.append(try RecordingRecords.hours.record(stored)) }
        return found
    }

    /// The name of a segment's object: the account, the device, the source and the hour are its folders.
    ///
    /// - Throws: 21031 if the parts make no name.
    package static func objectName(
        _ channel: RecordedChannel, hour: Int64, object: String
    ) throws(ApusError) -> ObjectName {
        try ObjectName(
            "recordings/\(ObjectName.part(channel.account.rawValue))/\(ObjectName.part(channel.device.rawValue))/"
                + "\(channel.source)/\(hour)/\(object)")
    }
}
