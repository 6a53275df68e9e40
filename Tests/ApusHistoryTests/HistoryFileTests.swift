import ApusCore
import ApusHistory
import Foundation
import Testing

@Suite("Recorded histories and their files")
struct HistoryFileTests {
    private let history = HandWritten.make {
        $0.add(0, 0, 1, .write(1), .ok)
        $0.add(1, 2, nil, .compareAndSwap(expected: 1, new: 2))
        $0.add(2, 3, 4, .compareAndSwap(expected: 7, new: 3), .mismatch(1))
        $0.add(0, 5, 6, .write(4), .failed)
        $0.add(1, 7, 9, .read, .value(2), entity: "a \"quoted\" name")
        $0.add(2, 8, 10, .compareAndSwap(expected: 2, new: .max), .ok)
    }

    private func written(_ operations: [RegisterOperation]) throws -> Data {
        let path = NSTemporaryDirectory() + "/apus-history-\(UUID().uuidString)"
        defer { try? FileManager.default.removeItem(atPath: path) }
        try HistoryFile.write(operations, to: path)
        #expect(try HistoryFile.read(path).cut == nil)
        return try #require(FileManager.default.contents(atPath: path))
    }

    @Test("A file has the history that was written, by invocation, each operation in a line")
    func roundTrip() throws {
        let data = try written(history.reversed())
        let contents = try HistoryFile.contents(of: data, name: "test")
        #expect(contents.operations == history && contents.cut == nil)
        let lines = String(decoding: data, as: UTF8.self).split(separator: "\n")
        #expect(lines.count == history.count + 1)
        #expect(
            lines[1]
                == #"{"client":0,"entity":"r","invoked_ns":0,"new":1,"op":"write","outcome":"ok","returned_ns":1000000}"#
        )
    }

    @Test("A file that is cut anywhere is read up to there, with a report")
    func cut() throws {
        let data = try written(history)
        let head = try #require(data.firstIndex(of: UInt8(ascii: "\n")))
        // The last byte is the end of the last line, which is complete without it.
        for length in (head + 1)..<(data.count - 1) {
            let contents = try HistoryFile.contents(of: data.prefix(length), name: "test")
            #expect(contents.operations.count < history.count)
            let cut = try #require(contents.cut, "cut to \(length) bytes without a report")
            #expect(cut.hasPrefix("test ends ") && cut.contains("\(history.count) operations are missing"), "\(cut)")
        }
    }

    @Test("Of a file that is cut, nothing is reported that the missing operations explain")
    func cutIsSound() throws {
        // The read returned after the write of its value began, and the line of the write is missing.
        let lost = HandWritten.make {
            $0.add(0, 0, 1, .write(1), .ok)
            $0.add(1, 2, 9, .read, .value(2))
            $0.add(0, 3, 4, .read, .value(1))
            $0.add(0, 5, 6, .write(2), .ok)
        }
        let data = try written(lost)
        let contents = try HistoryFile.contents(of: data.prefix(data.count - 10), name: "test")
        #expect(contents.operations.count == 3)
        #expect(LinearizabilityChecker().check(contents.operations) == .linearizable)
        // Every prefix of right histories.
        for seed in 0..<5 as Range<UInt64> {
            let data = try written(RegisterSimulation.run(seed: seed))
            for length in stride(from: data.count / 10, to: data.count, by: data.count / 37) {
                let contents = try HistoryFile.contents(of: data.prefix(length), name: "test")
                #expect(LinearizabilityChecker().check(contents.operations) == .linearizable, "seed \(seed), \(length)")
            }
        }
    }

    @Test("A damaged line before the last, another format and a newer version are refused")
    func damaged() throws {
        let text = String(decoding: try written(history), as: UTF8.self)
        func code(_ text: String) -> ErrorCode? {
            do throws(ApusError) {
                _ = try HistoryFile.contents(of: Data(text.utf8), name: "test")
                return nil
            } catch {
                return error.code
            }
        }
        #expect(code(text) == nil)
        #expect(code(text.replacing("\"op\":\"read\"", with: "\"op\":\"rea")) == .malformed)
        #expect(code(text.replacing("\"outcome\":\"failed\"", with: "\"outcome\":\"value\"")) == .malformed)
        #expect(code(text.replacing("apus-history", with: "other")) == .malformed)
        #expect(code(text.replacing("\"version\":1", with: "\"version\":2")) == .versionUnsupported)
        #expect(code(text.replacing("\"operations\":6", with: "\"operations\":5")) == .malformed)
        #expect(code("") == .malformed)
        #expect(throws: ApusError(.storageFailed)) { try HistoryFile.read("/nonexistent/history") }
    }

    // MARK: The recorder

    @Test("A recorder has what was invoked and returned; what has not returned is unknown")
    func recorder() throws {
        let recorder = HistoryRecorder()
        let first = try recorder.invoke(client: 1, entity: "r", request: .write(1), now: .milliseconds(5))
        let second = try recorder.invoke(client: 0, entity: "r", request: .read, now: .milliseconds(4))
        let third = try recorder.invoke(client: 2, entity: "r", request: .write(2), now: .milliseconds(6))
        recorder.returned(second, .value(0), now: .milliseconds(8))
        recorder.returned(first, .ok, now: .milliseconds(9))
        recorder.returned(third, .unknown, now: .milliseconds(9))
        _ = try recorder.invoke(client: 0, entity: "r", request: .read, now: .milliseconds(10))
        #expect(
            recorder.operations
                == HandWritten.make {
                    $0.add(0, 4, 8, .read, .value(0))
                    $0.add(1, 5, 9, .write(1), .ok)
                    $0.add(2, 6, nil, .write(2))
                    $0.add(0, 10, nil, .read)
                })
    }

    @Test("A recorder that is full refuses operations")
    func full() throws {
        let recorder = HistoryRecorder(operationCountMax: 2)
        for value in 1...2 as ClosedRange<UInt64> {
            _ = try recorder.invoke(client: 0, entity: "r", request: .write(value))
        }
        #expect(throws: ApusError(.overloaded)) { try recorder.invoke(client: 0, entity: "r", request: .write(3)) }
        #expect(recorder.operationCount == 2)
    }

    @Test("Threads that record at the same time lose nothing, and a register behind a lock is linearizable")
    func threads() async throws {
        let recorder = HistoryRecorder()
        let register = LockedRegister()
        try await withThrowingTaskGroup(of: Void.self) { group in
            for client in 0..<4 {
                group.addTask {
                    for number in 1...500 {
                        let value = UInt64(number * 4 + client)
                        let write = try recorder.invoke(client: client, entity: "r", request: .write(value))
                        register.value = value
                        recorder.returned(write, .ok)
                        let read = try recorder.invoke(client: client, entity: "r", request: .read)
                        recorder.returned(read, .value(register.value))
                    }
                }
            }
            try await group.waitForAll()
        }
        #expect(recorder.operationCount == 4_000)
        #expect(recorder.operations.allSatisfy { $0.returnedAt.map { end in end.nanoseconds > 0 } ?? false })
        #expect(LinearizabilityChecker().check(recorder.operations) == .linearizable)
    }
}
