import ApusClient
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import NIOCore
import Testing

@Suite("A snapshot is a picture of the latest frame")
struct SnapshotTests {
    let folder = Folder()

    @Test("The picture has the stream's size, and is not one colour")
    func picture() async throws {
        let snapshot = Snapshot()
        for frame in try await publish(try pattern("640x360@25", frames: 40)) { snapshot.write(frame) }
        let path = folder.file("picture.png")
        try snapshot.save(to: path)
        let bytes = [UInt8](try #require(FileManager.default.contents(atPath: path)))
        #expect(bytes.starts(with: [0x89, 0x50, 0x4e, 0x47]))
        #expect(bytes[16..<24].elementsEqual([0, 0, 2, 0x80, 0, 0, 1, 0x68]))
        #expect(bytes.count > 5000)
    }

    @Test("Before the first key frame it says so, and a wrong path too")
    func errors() async throws {
        let snapshot = Snapshot()
        let frames = try await publish(try pattern(frames: 10))
        for frame in frames where !frame.header.flags.contains(.key) { snapshot.write(frame) }
        #expect(#expect(throws: ApusError.self) { try snapshot.png() }?.code == .mediaUnreadable)
        for frame in frames { snapshot.write(frame) }
        let error = #expect(throws: ApusError.self) { try snapshot.save(to: "/nowhere/picture.png") }
        #expect(error?.code == .storageFailed)
    }

    @Test("Frames that are damaged give an error or a picture, never a crash")
    func damaged() async throws {
        let snapshot = Snapshot()
        for (index, frame) in try await publish(try pattern(frames: 20)).enumerated() {
            var frame = frame
            if !frame.header.flags.contains(.configuration), frame.payload.readableBytes > 40 {
                let place = frame.payload.readerIndex + 8 + index
                frame.payload.setInteger(UInt64.max / UInt64(index + 2), at: place)
            }
            snapshot.write(frame)
        }
        do { _ = try snapshot.png() } catch { #expect(error.code == .mediaUnreadable) }
    }
}
