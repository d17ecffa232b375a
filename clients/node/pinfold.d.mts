// For those who import the file itself: TypeScript looks for its types here.
export * from './pinfold.js';
