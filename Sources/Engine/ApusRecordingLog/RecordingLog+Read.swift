import ApusCore
import ApusMedia
import NIOCore
import Synchronization

/// What the reader's thread does.
extension RecordingLog {
    /// So many reads of a section fail before it counts as damaged, unless its content is wrong, which counts at once.
    private static let failureCountMax: UInt16 = 4

    func readNow(
        _ channel: ExactText, after: FramePosition?, byteCountMax: Int
    ) throws(ApusError) -> [LoggedFrame] {
        var (frames, byteCount, after) = ([LoggedFrame](), 0, after)
        while byteCount < byteCountMax {
            guard let plan = state.withLock({ $0.index.plan(channel, after: after) }) else { break }
            // If a section is found damaged, another one may have its frames.
            guard let merged = try merged(plan.extents, of: channel, after: after, through: plan.end) else { continue }
            for frame in merged {
                // The first one is returned in any case.
                guard frames.isEmpty || byteCount + frame.content.readableBytes <= byteCountMax else { return frames }
                frames.append(frame)
                byteCount += frame.content.readableBytes
            }
            after = plan.end
        }
        return frames
    }

    /// The frames of sections within the positions, in order, each once; nil if a section cannot be read.
    private func merged(
        _ extents: [LogExtent], of channel: ExactText, after: FramePosition?, through end: FramePosition
    ) throws(ApusError) -> [LoggedFrame]? {
        var frames: [LoggedFrame] = []
        for extent in extents {
            guard let section = try section(extent, of: channel) else { return nil }
            frames += section.filter { frame in
                frame.position >= extent.firstPosition && frame.position <= end
                    && (after.map { frame.position > $0 } ?? true)
            }
        }
        guard extents.count > 1 else { return frames }
        frames.sort { $0.position < $1.position }
        var last: FramePosition?
        return frames.filter { frame in
            defer { last = frame.position }
            return frame.position != last
        }
    }

    /// The frames of a section; nil if it is damaged or was released in the meantime.
    private func section(_ extent: LogExtent, of channel: ExactText) throws(ApusError) -> [LoggedFrame]? {
        guard let open = state.withLock({ $0.open[Int(extent.slot)] }) else { return nil }
        do throws(FileFailure) {
            let bytes = try open.file.read(at: Int(extent.offset), countMax: Int(extent.byteCount))
            if let frames = extent.frames(bytes, open.cipher, open.header.identity) { return frames }
            state.withLock { _ = $0.failedToRead(extent, of: channel, failureCountMax: 1) }
            return nil
        } catch {
            let isLeft = state.withLock {
                $0.failedToRead(extent, of: channel, failureCountMax: Self.failureCountMax)
            }
            guard isLeft else { return nil }
            throw error.error
        }
    }
}

extension RecordingLog.State {
    /// - Returns: true if the section may be read again.
    mutating func failedToRead(_ extent: LogExtent, of channel: ExactText, failureCountMax: UInt16) -> Bool {
        guard let isDamaged = index.failedToRead(extent, of: channel, failureCountMax: failureCountMax) else {
            return false
        }
        if isDamaged { damagedRecordCount += 1 }
        return !isDamaged
    }
}

extension LogExtent {
    /// The frames of a section's bytes; nil if they are not its bytes.
    func frames(_ bytes: [UInt8], _ cipher: LogCipher, _ identity: UInt64) -> [LoggedFrame]? {
        guard bytes.count == Int(byteCount), LogFormat.checksum(bytes) == checksum,
            let plain = cipher.open(bytes, at: LogPlace(identity: identity, group: group, part: part))
        else { return nil }
        // The first position may have grown by a release.
        let section = LogSection(
            epoch: epoch, first: 0, last: last, frameCount: Int(frameCount), receivedMicroseconds: 0,
            byteCount: Int(byteCount), checksum: checksum)
        return LoggedFrame.frames(plain, of: section)
    }
}
