import ApusContract
public import ApusCore
public import Foundation

// What devices have recorded themselves (IV-C5, docs/recordings.md).

extension ClientSession {
    /// The recordings of a device that have a part between two times, oldest first. They are at the device, which must
    /// be online.
    ///
    /// - Parameter source: the number of the recorded source.
    /// - Returns: at most ``recordingsMax``; empty if nothing was recorded.
    /// - Throws: 21030 if the device offers no recordings, 21033 if its list cannot be read, 21037 if the list is of a
    ///   later version, 8003 and 12004 if this client may not control the device, otherwise as
    ///   ``performAction(_:json:on:timeout:)``.
    public func recordings(
        of device: DeviceID, source: UInt16 = 0, from: Date, to: Date
    ) async throws(ApusError) -> [Recording] {
        var found: [Recording] = []
        var (from, to) = (from.milliseconds, to.milliseconds)
        from = min(max(0, from), PlaybackMessages.timeMax)
        to = min(max(0, to), PlaybackMessages.timeMax)
        guard from <= to else { throw ApusError(.badParameter, "the end is before the start") }
        while true {
            let request = PlaybackMessages.ListRequest(source: source, from: from, to: to)
            let answer = try await askDevice(device, PlaybackMessages.listAction, try PlaybackMessages.json(request))
            let list = try PlaybackMessages.List(json: answer)
            // The one with which the answer before ended may come again.
            let new = list.recordings.filter { $0.start > found.last?.start ?? .distantPast }
            found += new
            guard list.more, !new.isEmpty, let last = list.list.last, last[1] < to, found.count < Self.recordingsMax
            else {
                return Array(found.prefix(Self.recordingsMax))
            }
            from = last[1]
        }
    }

    /// The most recordings that ``recordings(of:source:from:to:)`` returns.
    public static let recordingsMax = 10_000

    /// Asks a device for a built-in action under an id of its own, so that several may be in progress.
    ///
    /// - Throws: 21030 if its program does not know the action.
    func askDevice(_ device: DeviceID, _ action: String, _ json: String) async throws(ApusError) -> String {
        do throws(ApusError) {
            return try await sendCommand(
                .action(path: "Action.\(action).ctlVal", json: json), to: device, id: Self.randomCommandID()
            ).json
        } catch {
            guard error.code == .actionUnknown else { throw error }
            throw ApusError(.notImplemented, "the device offers no recordings")
        }
    }
}
