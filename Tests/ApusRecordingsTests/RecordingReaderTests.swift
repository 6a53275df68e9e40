import ApusClientAPI
import ApusContract
import ApusCore
import ApusMedia
import ApusObjectStore
import ApusRecordings
import ApusSessions
import ApusStorage
import ApusTestKit
import Foundation
import NIOCore
import SwiftProtobuf
import Synchronization
import Testing

/// A reader with an index in memory and objects in a directory.
struct ReaderPlace {
    /// What the test changes while the reader runs.
    struct State {
        /// Unix milliseconds.
        var now = aTime / 1000 + 86_400_000
        var devices: [DeviceID: DeviceRecord] = [:]
        var revoked = false
    }

    final class Box: Sendable { let state = Mutex(State()) }

    let folder = Folder()
    let box = Box()
    let store: any RecordStore
    let reader: RecordingReader
    let cam = DeviceID(unchecked: "cam")

    init(
        limits: RecordingReaderLimits = RecordingReaderLimits(), store: any RecordStore = MemoryRecordStore()
    ) async throws {
        self.store = store
        let sealer = TicketSealer(clusterKey: [UInt8](repeating: 7, count: 32))
        let box = box
        reader = RecordingReader(
            index: RecordingIndex(store), objects: try await DirectoryObjectStore(path: folder.file("objects")),
            sessions: RecordingSessions(
                device: { device throws(ApusError) in box.state.withLock { $0.devices[device] } },
                seal: { session, device, content, lifetime throws(ApusError) in
                    try sealer.sealAddress(
                        session, device: device, content: content,
                        expiresAt: box.state.withLock { $0.now } / 1000 + lifetime.components.seconds)
                },
                open: { text throws(ApusError) in
                    try sealer.openAddress(text, wallSeconds: box.state.withLock { $0.now } / 1000)
                },
                check: { address throws(ApusError) in
                    guard !box.state.withLock({ $0.revoked }) else { throw ApusError(.tokenInvalid) }
                }),
            limits: limits, now: { box.state.withLock { $0.now } })
        var record = DeviceRecord(device: cam, account: AccountID(unchecked: "home"), epoch: 1)
        record.shares = [DeviceShare(account: AccountID(unchecked: "guest"), control: false)]
        let known = record
        box.state.withLock { $0.devices[known.device] = known }
    }

    func session(_ account: String, _ role: Session.Role = .app, only: [DeviceID]? = nil) -> Session {
        Session(
            id: "1", role: role, access: AccessID(unchecked: "\(account)-app"), account: AccountID(unchecked: account),
            device: nil, allowedDevices: only, sinceMilliseconds: 0,
            token: TokenMark(tag: 1, issuedAt: 0, expires: 9_999_999_999))
    }

    /// Writes the hours and the head of made-up segments.
    func put(_ maker: RecordingMaker) async throws {
        let all = maker.segments.map(\.segment)
        let head = RecordingHead.with {
            ($0.account, $0.device) = (maker.channel.account.rawValue, maker.channel.device.rawValue)
            ($0.segments, $0.bytes) = (UInt64(all.count), all.reduce(0) { $0 + $1.bytes })
            ($0.firstUs, $0.endUs) = (all.map(\.startUs).min() ?? 0, all.map(\.endUs).max() ?? 0)
        }
        let fence = RecordFence(epoch: 5, writer: "n1/1")
        try await store.commit(RecordStep(RecordingRecords.heads.put(head, fence: fence)))
        for hour in maker.hours { try await store.commit(RecordStep(RecordingRecords.hours.put(hour, fence: fence))) }
    }

    func head(_ channel: RecordedChannel) async throws -> RecordingHead? {
        try await reader.index.head(of: channel)?.body
    }
}

@Suite("The reader of recordings", .timeLimit(.minutes(2)))
struct RecordingReaderTests {
    private static func refusal(_ body: () async throws -> Void) async -> ErrorCode? {
        do {
            try await body()
            return nil
        } catch {
            return (error as? ApusError)?.code
        }
    }

    @Test("The account has all rights, a guest sees, others find nothing, and an account of before keeps its own")
    func rights() async throws {
        let place = try await ReaderPlace()
        let reader = place.reader
        func may(_ session: Session, _ need: RecordingReader.Need, account: String = "") async -> String {
            do throws(ApusError) {
                return try await reader.channel("cam", 0, account: account, for: session, need).account.rawValue
            } catch {
                return "\(error.code)"
            }
        }
        #expect(await may(place.session("home"), .own) == "home")
        #expect(await may(place.session("guest"), .view) == "home")
        #expect(await may(place.session("guest"), .own) == "8002")
        #expect(await may(place.session("other"), .view) == "8002")
        #expect(await may(place.session("other"), .view, account: "home") == "8002")
        #expect(await may(place.session("operator", .admin), .own) == "home")
        #expect(await may(place.session("home", .device), .view) == "12004")
        #expect(await may(place.session("home", only: [DeviceID(unchecked: "bell")]), .view) == "12004")
        #expect(await may(place.session("home"), .view, account: "no such name!") == "21031")
        // The device moves. Its old recordings stay with the old account, and the new one has none of them.
        try await place.put(RecordingMaker.some)
        let moved = DeviceRecord(device: place.cam, account: AccountID(unchecked: "next"), epoch: 1)
        place.box.state.withLock { $0.devices[moved.device] = moved }
        #expect(await may(place.session("home"), .own) == "home")
        #expect(await may(place.session("next"), .own) == "next")
        #expect(await may(place.session("next"), .view, account: "home") == "8002")
        #expect(await may(place.session("guest"), .view) == "8002")
        #expect(await may(place.session("operator", .admin), .own, account: "home") == "home")
        // A disabled device is nobody's to see but its account's.
        var disabled = moved
        (disabled.isDisabled, disabled.shares) = (
            true, [DeviceShare(account: AccountID(unchecked: "guest"), control: true)]
        )
        let record = disabled
        place.box.state.withLock { $0.devices[record.device] = record }
        #expect(await may(place.session("guest"), .view) == "20011")
        #expect(await may(place.session("next"), .view) == "next")
    }

    @Test("A plan keeps its start while it is in use, and its end is its end (IV-E2)")
    func plans() async throws {
        let place = try await ReaderPlace()
        let (reader, channel) = (place.reader, RecordingMaker.some.channel)
        let first = try await reader.record(channel, .with { ($0.mode, $0.days) = (.continuous, 7) })
        #expect(first.status == .inUse && first.curOrderStartTime == aTime / 1_000_000 + 86_400)
        place.box.state.withLock { $0.now += 3_600_000 }
        let second = try await reader.record(channel, .with { ($0.mode, $0.days) = (.continuous, 30) })
        #expect(second.curOrderStartTime == first.curOrderStartTime && second.playbackDays == 30)
        let ended = try await reader.stop(channel)
        #expect(ended.status == .expired && ended.endTime == aTime / 1_000_000 + 90_000)
        place.box.state.withLock { $0.now += 3_600_000 }
        let third = try await reader.record(channel, .with { ($0.mode, $0.days) = (.continuous, 7) })
        #expect(third.startTime == first.startTime && third.curOrderStartTime == aTime / 1_000_000 + 93_600)
        for (mode, days, end) in [(0, 7, 0), (1, 0, 0), (1, 3651, 0), (1, 7, 5), (2, 7, 0)] {
            let code = await Self.refusal {
                _ = try await reader.record(
                    channel,
                    .with {
                        ($0.mode, $0.days) = (ClientRecordingMode(rawValue: mode) ?? .unspecified, UInt32(days))
                        $0.end = Int64(end)
                    })
            }
            #expect(code == .badParameter)
        }
    }

    @Test("A chain of asks over the store has each segment of 40 hours once, and each list has what its address names")
    func chain() async throws {
        var limits = RecordingReaderLimits()
        limits.playListSegmentsMax = 37
        let place = try await ReaderPlace(limits: limits)
        var maker = RecordingMaker(seed: 9)
        maker.stream(from: aTime - 86_400_000_000, count: 1500)
        try await place.put(maker)
        let (session, zone) = (place.session("home"), Int32(7200))
        var (start, names) = (aTime / 1_000_000 - 90_000, [String]())
        let end = start + 144_000
        while true {
            let answer = try await place.reader.address(
                of: maker.channel, .with { ($0.start, $0.end, $0.timezone) = (start, end, zone) }, for: session)
            if !answer.url.isEmpty {
                let parts = answer.url.split(separator: "/")
                let list = try await place.reader.download("index.m3u8", at: String(parts[2]))
                let text = String(buffer: try await list.read(0..<list.byteCount))
                names += text.split(separator: "\n").filter { $0.hasSuffix(".mp4") }.map(String.init)
                #expect(text.hasSuffix("#EXT-X-ENDLIST\n"))
                #expect(
                    answer.url.hasSuffix(
                        "?starttime=\(CivilTime(seconds: start + 7200).digits)"
                            + "&endtime=\(CivilTime(seconds: answer.endTime + 7200).digits)"))
            }
            if answer.endflag { break }
            try #require(answer.endTime > start)
            start = answer.endTime
        }
        let wanted = maker.all.filter { $0.end > (end - 144_000) * 1_000_000 && $0.start < end * 1_000_000 }
        let expected = wanted.map { HLSPlayList.name(hour: $0.hour, object: $0.record.object) }
        #expect(names.count > 200 && Set(names).count == names.count)
        #expect(Set(names).symmetricDifference(expected).sorted() == [])
    }

    @Test("A list that grows has what is sealed meanwhile, until its end")
    func growing() async throws {
        let place = try await ReaderPlace()
        var maker = RecordingMaker(seed: 10)
        maker.newRun()
        maker.add(aTime, 10_000_000)
        try await place.put(maker)
        place.box.state.withLock { $0.now = aTime / 1000 + 12_000 }
        let start = aTime / 1_000_000
        let answer = try await place.reader.address(
            of: maker.channel, .with { ($0.start, $0.end, $0.growing) = (start, start + 25, true) },
            for: place.session("guest"))
        #expect(answer.exportURL.isEmpty && answer.endflag)
        let token = String(answer.url.split(separator: "/")[2])
        func text() async throws -> String {
            let list = try await place.reader.download("index.m3u8", at: token)
            return String(buffer: try await list.read(0..<list.byteCount))
        }
        let first = try await text()
        #expect(first.contains("PLAYLIST-TYPE:EVENT") && !first.contains("ENDLIST"))
        maker.add(aTime + 10_000_000, 10_000_000)
        try await place.put(maker)
        let second = try await text()
        #expect(second.hasPrefix(first) && !second.contains("ENDLIST"))
        maker.add(aTime + 20_000_000, 10_000_000)
        maker.add(aTime + 30_000_000, 10_000_000)
        try await place.put(maker)
        let third = try await text()
        #expect(third.hasPrefix(second) && third.hasSuffix("s3.mp4\n#EXT-X-ENDLIST\n"))
        // A guest may not export.
        let code = await Self.refusal { _ = try await place.reader.download("export.mp4", at: token) }
        #expect(code == .targetUnknown)
    }

    @Test("A right that is lost, a revoked token and the end of an address end what it names")
    func lost() async throws {
        var limits = RecordingReaderLimits()
        limits.rightsInterval = .zero
        let place = try await ReaderPlace(limits: limits)
        let maker = RecordingMaker.some
        try await place.put(maker)
        let segment = maker.all[0]
        let name = try RecordingIndex.objectName(maker.channel, hour: segment.hour, object: segment.record.object)
        _ = try await place.reader.objects.put(name, ObjectContent([UInt8](repeating: 9, count: 1000)))
        let answer = try await place.reader.address(
            of: maker.channel, .with { $0.start = aTime / 1_000_000 }, for: place.session("guest"))
        let token = String(answer.url.split(separator: "/")[2])
        let file = HLSPlayList.name(hour: segment.hour, object: segment.record.object)
        let download = try await place.reader.download(file, at: token)
        #expect(download.byteCount == 900 && download.secondsKept == 3600)
        #expect(try await download.read(800..<900).readableBytes == 100)
        // Another channel's, another hour's, and what is not in the range.
        for other in ["0-\(segment.record.object).mp4", "\(segment.hour)-s99.mp4", "x", "../../etc/passwd"] {
            #expect(await Self.refusal { _ = try await place.reader.download(other, at: token) } == .targetUnknown)
        }
        let forged = token.dropLast(3) + "AAA"
        #expect(await Self.refusal { _ = try await place.reader.download(file, at: String(forged)) } == .tokenInvalid)
        // The right is lost while the file is sent.
        place.box.state.withLock { $0.devices[place.cam]?.shares = [] }
        #expect(await Self.refusal { _ = try await download.read(0..<10) } == .targetUnknown)
        #expect(await Self.refusal { _ = try await place.reader.download(file, at: token) } == .targetUnknown)
        place.box.state.withLock { state in
            state.devices[place.cam]?.shares = [DeviceShare(account: AccountID(unchecked: "guest"), control: false)]
            state.revoked = true
        }
        #expect(await Self.refusal { _ = try await download.read(0..<10) } == .tokenInvalid)
        place.box.state.withLock { ($0.revoked, $0.now) = (false, $0.now + 3_601_000) }
        #expect(await Self.refusal { _ = try await place.reader.download(file, at: token) } == .tokenExpired)
    }

    @Test("What is deleted is found no more, its objects go afterwards, and what is protected stays")
    func deleting() async throws {
        let place = try await ReaderPlace()
        var maker = RecordingMaker(seed: 11)
        maker.newRun()
        for index in 0..<500 { maker.add(aTime + Int64(index) * 20_000_000, 20_000_000) }
        try await place.put(maker)
        for segment in maker.all {
            let name = try RecordingIndex.objectName(maker.channel, hour: segment.hour, object: segment.record.object)
            _ = try await place.reader.objects.put(name, ObjectContent([1]))
        }
        let (reader, start) = (place.reader, aTime / 1_000_000)
        let kept = try await reader.protect(maker.channel, start + 100..<start + 200, until: .max)
        #expect(kept.count == 5 && kept.isDone)
        // From within the first segment to within the last of them.
        let deleted = try await reader.delete(maker.channel, start + 10..<start + 9000)
        #expect(deleted.count == 445 && deleted.bytes == 445_000 && deleted.protectedCount == 5 && deleted.isDone)
        let left = try await reader.times(of: maker.channel, start..<start + 86_400)
        #expect(left.map { ($0.start - aTime) / 1_000_000 } == [100, 9000])
        #expect(left.first?.client.reason == .deleted)
        let head = try #require(try await place.head(maker.channel))
        #expect(head.segments == 55 && head.bytes == 55_000 && head.firstUs == aTime + 100_000_000)
        // A repetition has nothing to delete.
        #expect(try await reader.delete(maker.channel, start..<start + 9000).count == 0)
        var swept = 0
        while true {
            let sweep = try await reader.sweep(countMax: 1)
            swept += Int(sweep.count)
            if sweep.isDone { break }
        }
        #expect(swept == 445)
        let objects = try await reader.objects.list(prefix: "recordings/", after: nil, countMax: nil)
        #expect(objects.entries.count == 55)
        let released = try await reader.protect(maker.channel, start..<start + 9000, until: 0)
        #expect(released.count == 5)
        #expect(try await reader.delete(maker.channel, start..<start + 10_000).count == 55)
        _ = try await reader.sweep()
        #expect(try await reader.objects.list(prefix: "recordings/", after: nil, countMax: nil).entries.isEmpty)
        #expect(try await place.head(maker.channel)?.segments == 0)
        #expect(try await reader.days(of: maker.channel, zone: 0).isEmpty)
    }

    @Test("The list of an account has its channels, page by page, and no other account's")
    func channels() async throws {
        var limits = RecordingReaderLimits()
        limits.channelPageMax = 3
        let place = try await ReaderPlace(limits: limits)
        for (account, device, source) in (0..<8).map({ ("home", "cam-\($0 / 2)", $0 % 2) }) + [("home2", "x", 0)] {
            let head = RecordingHead.with {
                ($0.account, $0.device, $0.source) = (account, device, UInt32(source))
                ($0.segments, $0.bytes, $0.firstUs, $0.endUs) = (1, 7, aTime, aTime + 5)
            }
            try await place.store.commit(RecordStep(RecordingRecords.heads.put(head, fence: .none)))
        }
        var (token, found) = ("", [String]())
        repeat {
            let page = try await place.reader.channels(of: AccountID(unchecked: "home"), after: token)
            found += page.channels.map { "\($0.device)/\($0.source)" }
            token = page.nextPageToken
        } while !token.isEmpty
        #expect(found == (0..<8).map { "cam-\($0 / 2)/\($0 % 2)" })
        #expect(
            await Self.refusal {
                _ = try await place.reader.channels(of: AccountID(unchecked: "home"), after: "cam")
            } == .badParameter)
    }

    @Test("Segments that are sealed while others are deleted are neither lost nor counted wrong")
    func races() async throws {
        let place = try await ReaderPlace()
        var maker = RecordingMaker(seed: 12)
        maker.newRun()
        for index in 0..<100 { maker.add(aTime + Int64(index) * 20_000_000, 20_000_000) }
        try await place.put(maker)
        let channel = maker.channel
        try await withThrowingTaskGroup(of: Void.self) { group in
            for part in 0..<10 {
                group.addTask {
                    let start = aTime / 1_000_000 + Int64(part) * 200
                    _ = try await place.reader.protect(channel, start..<start + 1, until: .max)
                    _ = try await place.reader.delete(channel, start..<start + 200)
                }
            }
            try await group.waitForAll()
        }
        let head = try #require(try await place.head(channel))
        let hours = try await place.reader.index.hours(of: channel, 0...Int64(1_000_000))
        let left = RecordedSegment.all(hours.map(\.body), in: RecordingView())
        #expect(head.segments == UInt64(left.count) && head.bytes == UInt64(left.count) * 1000)
        #expect(left.allSatisfy { $0.record.protectedUntilMs == .max } && left.count >= 10)
    }
}

extension RecordingMaker {
    /// Two runs of a few segments.
    static var some: Self {
        var maker = Self(seed: 77)
        for run in 0..<2 {
            maker.newRun()
            for index in 0..<4 {
                maker.add(aTime + Int64(run) * 100_000_000 + Int64(index) * 10_000_000, 10_000_000)
            }
        }
        return maker
    }
}

/// A store in which another node becomes the owner, and writes the head of a channel, before a change of a client.
private final class MovingStore: RecordStore {
    private let store = MemoryRecordStore()
    /// How often that still happens, and the epoch of the last owner.
    private let moves: Mutex<(left: Int, epoch: UInt64)>

    init(_ moves: Int) { self.moves = Mutex((moves, 10)) }

    func commit(
        _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void
    ) {
        let epoch = moves.withLock { moves -> UInt64? in
            guard moves.left > 0, steps.contains(where: { $0.writes.count == 2 }) else { return nil }
            moves = (moves.left - 1, moves.epoch + 1)
            return moves.epoch
        }
        guard let epoch else { return store.commit(steps, then: completion) }
        let head = RecordingHead.with {
            ($0.account, $0.device, $0.segments, $0.bytes) = ("home", "cam", 100, 100_000)
            $0.endUs = Int64(epoch)
        }
        let write = try? RecordingRecords.heads.put(head, fence: RecordFence(epoch: Epoch(epoch), writer: "n2/1"))
        guard let write else { return completion([]) }
        store.commit([RecordStep(write)]) { [store] _ in store.commit(steps, then: completion) }
    }

    func records(_ collection: String, _ keys: [OrderedKey]) async throws(ApusError) -> [StoredRecord?] {
        try await store.records(collection, keys)
    }
    func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage { try await store.page(scan) }
    func lockHolder() async -> RecordLockHolder? { nil }
    func close() async { await store.close() }
}

extension RecordingReaderTests {
    @Test(
        "A channel that gets another owner while a client deletes is counted as the new owner has it",
        arguments: [1, 5])
    func moving(moves: Int) async throws {
        let place = try await ReaderPlace(store: MovingStore(moves))
        let maker = RecordingMaker.some
        try await place.put(maker)
        let start = aTime / 1_000_000
        #expect(try await place.reader.delete(maker.channel, start..<start + 25).count == 3)
        let head = try #require(try await place.head(maker.channel))
        #expect(head.segments == 97 && head.bytes == 97_000 && head.endUs == Int64(10 + moves))
    }
}
