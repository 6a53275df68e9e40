// What browsers have and the library of TypeScript 4.8 has not: WebCodecs, and the scope of an AudioWorklet.

declare class AudioWorkletProcessor {
    readonly port: MessagePort;
}
declare function registerProcessor(name: string, processor: typeof AudioWorkletProcessor): void;

interface VideoDecoderConfig {
    codec: string;
    description?: BufferSource;
    codedWidth?: number;
    codedHeight?: number;
    optimizeForLatency?: boolean;
}
interface AudioDecoderConfig {
    codec: string;
    description?: BufferSource;
    sampleRate: number;
    numberOfChannels: number;
}
type CodecState = "unconfigured" | "configured" | "closed";
interface EncodedChunkInit {
    type: "key" | "delta";
    timestamp: number;
    data: BufferSource;
}
declare class EncodedVideoChunk {
    constructor(init: EncodedChunkInit);
    readonly type: "key" | "delta";
    readonly timestamp: number;
    readonly byteLength: number;
    copyTo(destination: BufferSource): void;
}
declare class EncodedAudioChunk extends EncodedVideoChunk {}
declare class VideoFrame {
    constructor(source: CanvasImageSource, init?: { timestamp?: number });
    readonly timestamp: number;
    readonly displayWidth: number;
    readonly displayHeight: number;
    close(): void;
}
interface CanvasDrawImage {
    drawImage(image: VideoFrame, dx: number, dy: number, dw: number, dh: number): void;
}
declare class AudioData {
    constructor(init: {
        format: string; sampleRate: number; numberOfFrames: number; numberOfChannels: number; timestamp: number;
        data: BufferSource;
    });
    readonly timestamp: number;
    readonly sampleRate: number;
    readonly numberOfFrames: number;
    readonly numberOfChannels: number;
    copyTo(destination: BufferSource, options: { planeIndex: number; format?: string }): void;
    close(): void;
}
declare class VideoDecoder {
    constructor(init: { output: (frame: VideoFrame) => void; error: (error: DOMException) => void });
    static isConfigSupported(config: VideoDecoderConfig): Promise<{ supported: boolean }>;
    readonly state: CodecState;
    readonly decodeQueueSize: number;
    configure(config: VideoDecoderConfig): void;
    decode(chunk: EncodedVideoChunk): void;
    close(): void;
}
declare class AudioDecoder {
    constructor(init: { output: (data: AudioData) => void; error: (error: DOMException) => void });
    static isConfigSupported(config: AudioDecoderConfig): Promise<{ supported: boolean }>;
    readonly state: CodecState;
    readonly decodeQueueSize: number;
    configure(config: AudioDecoderConfig): void;
    decode(chunk: EncodedAudioChunk): void;
    close(): void;
}
declare class VideoEncoder {
    constructor(init: {
        output: (chunk: EncodedVideoChunk, metadata?: { decoderConfig?: VideoDecoderConfig }) => void;
        error: (error: DOMException) => void;
    });
    readonly state: CodecState;
    readonly encodeQueueSize: number;
    configure(config: {
        codec: string; width: number; height: number; bitrate?: number; framerate?: number; latencyMode?: string;
        avc?: { format: string };
    }): void;
    encode(frame: VideoFrame, options?: { keyFrame?: boolean }): void;
    close(): void;
}
declare class AudioEncoder {
    constructor(init: { output: (chunk: EncodedAudioChunk) => void; error: (error: DOMException) => void });
    readonly state: CodecState;
    readonly encodeQueueSize: number;
    configure(config: { codec: string; sampleRate: number; numberOfChannels: number; bitrate?: number }): void;
    encode(data: AudioData): void;
    close(): void;
}
